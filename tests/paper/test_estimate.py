"""Estimates: steps are counted, seconds measured, and neither takes long."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tailshift.config import RunConfig
from tailshift.data import DataShape
from tailshift.paper import duration as estimate
from tailshift.paper.duration import (
    estimate_runs,
    num_steps,
    seconds_per_step,
)
from tailshift.recipes import load_recipe
from tailshift.training.loop import Trainer

SHAPE = DataShape(torch.tensor([100, 50]), image_size=8, in_channels=1)


@pytest.mark.parametrize(
    ("drop_last", "steps"),
    [("true", 3 * 2), ("false", 3 * 3)],  # 150 images are 2.3 batches of 64
)
def test_num_steps__counts_the_last_batch_where_it_is_taken(
    drop_last: str, steps: int
) -> None:
    settings = ["train.epochs=3", f"train.drop_last={drop_last}"]
    assert num_steps(load_recipe("digits_lt", settings), SHAPE) == steps


@pytest.mark.paper
@pytest.mark.parametrize(("ratio", "steps"), [(100, 42), (50, 49), (10, 76)])
def test_num_steps__of_the_papers_cifar_runs(ratio: int, steps: int) -> None:
    config = load_recipe(f"cifar100_lt_ir{ratio}_lade")
    shape = estimate.data_shape(config)
    assert num_steps(config, shape) == 200 * steps


def _fake_stepper(
    sizes: list[int], seconds_per_image: float
) -> Callable[[RunConfig, DataShape], Callable[[int], float]]:
    def step(size: int) -> float:
        sizes.append(size)
        return size * seconds_per_image

    return lambda config, shape: step


def test_seconds_per_step__grows_to_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(estimate, "_stepper", _fake_stepper(sizes, 0.01))
    config = load_recipe("digits_lt", ["train.batch_size=24"])
    assert seconds_per_step(config, SHAPE) == pytest.approx(0.24)
    assert sizes[:8] == [4, 4, 8, 8, 16, 16, 24, 24]
    assert set(sizes[8:]) == {24}
    assert sum(sizes[8:]) * 0.01 >= estimate.MEASURED


def test_seconds_per_step__scales_a_slow_step_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(estimate, "_stepper", _fake_stepper(sizes, 0.3))
    config = load_recipe("digits_lt", ["train.batch_size=128"])
    assert seconds_per_step(config, SHAPE) == pytest.approx(0.3 * 128)
    assert sizes == [4, 4, 8, 8]  # 8 images took 2.4 s


def test_estimate_runs__measures_equal_steps_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[str] = []

    def measure(config: RunConfig, shape: DataShape) -> float:
        measured.append(config.method_name)
        return 0.5

    monkeypatch.setattr(estimate, "seconds_per_step", measure)
    configs = [
        load_recipe(
            "digits_lt", ["train.epochs=30", f"method.name={method}", f"seed={seed}"]
        )
        for method in ("softmax", "lade")
        for seed in (0, 1)
    ]
    estimates = estimate_runs(configs)
    assert measured == ["softmax", "lade"]
    assert [found.seed for found in estimates] == [0, 1, 0, 1]
    assert [found.num_steps for found in estimates] == [30 * 5] * 4
    assert estimates[0].seconds == 75.0


def test_estimate_runs__measures_real_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "MEASURED", 0.01)
    [found] = estimate_runs([load_recipe("digits_lt", ["method.name=lade"])])
    assert 0 < found.seconds_per_step < 10


@pytest.mark.parametrize(
    "settings",
    [
        ["method.name=lade"],
        ["method.name=bbn"],
        ["method.name=oltr", "train.accumulate=3"],
        ["method.name=lade", "train.accumulate=2", "train.exact_accumulation=true"],
        ["method.name=softmax", "train.mixup=0.2"],
        ["method.name=sade", "train.label_smoothing=label_aware"],
    ],
    ids=lambda settings: ",".join(settings),
)
def test_stepper__takes_the_steps_of_the_training_loop(
    monkeypatch: pytest.MonkeyPatch, settings: list[str]
) -> None:
    """Each size is one step of `Trainer.fit` with the run's own loss and settings."""
    read: list[tuple[int, bool]] = []

    def end_epoch(trainer: Trainer, lr: float) -> dict[str, Any]:
        read.append((int(trainer.position.sums["images"]), trainer.divided is None))
        return {}

    monkeypatch.setattr(Trainer, "end_epoch", end_epoch)
    step = estimate._stepper(load_recipe("digits_lt", settings), SHAPE)
    assert all(step(size) > 0 for size in (4, 8, 5))
    is_plain = not any("accumulate" in s or "mixup" in s for s in settings)
    assert read == [(4, is_plain), (8, is_plain), (5, is_plain)]
