"""Learning rates against the paper's table and PyTorch's own schedulers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from tailshift.methods.schedules import Course, build_schedule

LR = 0.2


def _reference(
    build: Callable[[Optimizer], LRScheduler], num_steps: int
) -> list[float]:
    """Return the learning rate of each step under one of PyTorch's schedulers."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler = build(optimizer)
    rates = []
    for step in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if step + 1 < num_steps:  # one-cycle refuses a step past its end
            scheduler.step()
    return rates


@pytest.mark.parametrize("steps_per_epoch", [1, 42])
def test_multi_step__is_the_table_of_the_paper(steps_per_epoch: int) -> None:
    """Epochs 1..4: .2·(1/3 + 2/3·e/5) = .0933, .12, .1467, .1733; then as printed."""
    schedule = build_schedule(
        "multi_step",
        Course(
            epochs=200,
            steps_per_epoch=steps_per_epoch,
            warmup_epochs=5,
            milestones=[120, 160],
            decay=0.01,
        ),
    )
    expected = [0.0933, 0.12, 0.1467, 0.1733]
    expected += [0.2] * 115 + [0.002] * 40 + [0.00002] * 41
    for epoch in range(200):
        first = LR * schedule(epoch * steps_per_epoch)
        last = LR * schedule((epoch + 1) * steps_per_epoch - 1)
        assert first == last
        assert first == pytest.approx(expected[epoch], abs=5e-5 if epoch < 4 else 1e-12)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 10, 150, 1001])
def test_one_cycle__equals_torch(num_steps: int) -> None:
    def build(optimizer: Optimizer) -> LRScheduler:
        return OneCycleLR(
            optimizer, max_lr=LR, total_steps=num_steps, cycle_momentum=False
        )

    schedule = build_schedule("one_cycle", Course(epochs=1, steps_per_epoch=num_steps))
    rates = [LR * schedule(step) for step in range(num_steps)]
    assert rates == pytest.approx(_reference(build, num_steps), rel=1e-9)


def test_cosine__equals_torch() -> None:
    epochs, steps_per_epoch = 6, 7
    num_steps = epochs * steps_per_epoch
    schedule = build_schedule(
        "cosine", Course(epochs=epochs, steps_per_epoch=steps_per_epoch)
    )
    rates = [LR * schedule(step) for step in range(num_steps)]
    closed = [
        LR * (1 + math.cos(math.pi * t / num_steps)) / 2 for t in range(num_steps)
    ]
    assert rates == pytest.approx(closed, rel=1e-12)
    torchs = _reference(lambda sgd: CosineAnnealingLR(sgd, T_max=num_steps), num_steps)
    assert rates == pytest.approx(torchs, rel=1e-9)


def test_cosine__warms_up_first() -> None:
    plain = build_schedule("cosine", Course(epochs=8, steps_per_epoch=3))
    warmed = build_schedule(
        "cosine", Course(epochs=8, steps_per_epoch=3, warmup_epochs=2)
    )
    assert [warmed(step) for step in range(3)] == [pytest.approx(2 / 3)] * 3
    assert [warmed(step) for step in range(3, 24)] == [plain(s) for s in range(3, 24)]


def test_multi_step__warms_up_from_nothing_as_ldam_does() -> None:
    """e/5 in epochs 1 to 5, ×0.01 from epoch 161 and again from 181."""
    course = Course(200, 1, 5, warmup_start=0.0, milestones=[161, 181], decay=0.01)
    schedule = build_schedule("multi_step", course)
    factors = [schedule(epoch - 1) for epoch in (1, 2, 4, 5, 160, 161, 180, 181, 200)]
    expected = [0.2, 0.4, 0.8, 1, 1, 1e-2, 1e-2, 1e-4, 1e-4]
    assert factors == pytest.approx(expected)


def test_constant__is_one() -> None:
    schedule = build_schedule("constant", Course(epochs=3, steps_per_epoch=2))
    assert [schedule(step) for step in range(6)] == [1.0] * 6
