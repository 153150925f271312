"""Learning rate over time, each a pure function of the step: nothing to save."""

import math
from collections.abc import Callable, Sequence

Schedule = Callable[[int], float]
"""Maps the step, counted from 0, to a factor of the learning rate."""

WARMUP_START = 1 / 3
"""Where the linear warm-up would begin at epoch 0."""

ONE_CYCLE_RISE = 0.3
ONE_CYCLE_START = 1 / 25
ONE_CYCLE_END = 1 / 25e4
"""Share of the steps that rise, and the factors at both ends, as PyTorch has them."""


def build_schedule(
    name: str,
    *,
    epochs: int,
    steps_per_epoch: int,
    warmup_epochs: int = 0,
    milestones: Sequence[int] = (),
    decay: float = 0.1,
) -> Schedule:
    """Return the schedule of that name.

    ``multi_step`` and its warm-up change with the epoch, as the paper's runs did;
    ``cosine`` (to 0) and ``one_cycle`` change with the step.

    Example:
        >>> schedule = build_schedule(
        ...     "multi_step", epochs=4, steps_per_epoch=10, milestones=[3]
        ... )
        >>> [schedule(step) for step in (0, 19, 20, 39)]
        [1.0, 1.0, 0.1, 0.1]
    """
    num_steps = epochs * steps_per_epoch

    def factor(step: int) -> float:
        epoch = step // steps_per_epoch + 1  # counted from 1
        if name == "one_cycle":
            return one_cycle(step, num_steps)
        if epoch < warmup_epochs:
            return WARMUP_START + (1 - WARMUP_START) * epoch / warmup_epochs
        if name == "multi_step":
            return decay ** sum(epoch >= milestone for milestone in milestones)
        if name == "cosine":
            return (1 + math.cos(math.pi * step / num_steps)) / 2
        return 1.0

    return factor


def one_cycle(step: int, num_steps: int) -> float:
    """Return the factor of a cosine rise to 1 and a cosine fall to almost 0.

    Example:
        >>> round(one_cycle(0, 101), 3), round(one_cycle(29, 101), 3)
        (0.04, 1.0)
    """
    peak = ONE_CYCLE_RISE * num_steps - 1  # below 0 for a run of up to three steps
    if step <= peak:
        return _cosine_between(ONE_CYCLE_START, 1.0, step / peak)
    share = (step - peak) / (num_steps - 1 - peak)
    return _cosine_between(1.0, ONE_CYCLE_END, share)


def _cosine_between(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
