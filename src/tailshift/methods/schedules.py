"""Learning rate over time, each a pure function of the step: nothing to save."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps

from tailshift.registry import Registry

SCHEDULES: Registry[Callable[..., float]] = Registry("schedule")

Schedule = Callable[[int], float]
"""Maps the step, counted from 0, to a factor of the learning rate."""


@dataclass(frozen=True)
class Course:
    """How far a stage goes, and the settings that some schedules use."""

    epochs: int
    steps_per_epoch: int
    warmup_epochs: int = 0
    warmup_start: float = 1 / 3
    milestones: Sequence[int] = ()
    decay: float = 0.1

    @property
    def num_steps(self) -> int:
        """Steps of the whole stage."""
        return self.epochs * self.steps_per_epoch

    def epoch(self, step: int) -> int:
        """Return the epoch of a step, counted from 1."""
        return step // self.steps_per_epoch + 1


Factor = Callable[[int, Course], float]
"""An entry of ``SCHEDULES``: maps step and course to a factor of the learning rate."""

_ONE_CYCLE_RISE = 0.3
_ONE_CYCLE_START = 1 / 25
_ONE_CYCLE_END = 1 / 25e4
"""Share of the steps that rise, and the factors at both ends, as PyTorch has them."""


def build_schedule(name: str, course: Course) -> Schedule:
    """Return the schedule of that name.

    ``multi_step`` and the warm-up change with the epoch, as the paper's runs did;
    ``cosine`` and ``one_cycle`` change with the step.

    Args:
        name: One of ``SCHEDULES``.
        course: What it is for.

    Example:
        >>> course = Course(epochs=4, steps_per_epoch=10, milestones=[3])
        >>> schedule = build_schedule("multi_step", course)
        >>> [schedule(step) for step in (0, 19, 20, 39)]
        [1.0, 1.0, 0.1, 0.1]
    """
    factor = SCHEDULES.get(name)
    return lambda step: factor(step, course)


def _after_warmup(factor: Factor) -> Factor:
    """Return the schedule that rises linearly for ``warmup_epochs`` first."""

    @wraps(factor)
    def warmed(step: int, course: Course) -> float:
        epoch = course.epoch(step)
        if epoch < course.warmup_epochs:
            start = course.warmup_start
            return start + (1 - start) * epoch / course.warmup_epochs
        return factor(step, course)

    return warmed


@SCHEDULES.register("constant")
@_after_warmup
def constant(step: int, course: Course) -> float:
    """Return 1 throughout."""
    return 1.0


@SCHEDULES.register("multi_step")
@_after_warmup
def multi_step(step: int, course: Course) -> float:
    """Return a factor that falls by ``decay`` at each of the milestones."""
    epoch = course.epoch(step)
    return course.decay ** sum(epoch >= milestone for milestone in course.milestones)


@SCHEDULES.register("cosine")
@_after_warmup
def cosine(step: int, course: Course) -> float:
    """Return half a cosine from 1 to 0."""
    return (1 + math.cos(math.pi * step / course.num_steps)) / 2


@SCHEDULES.register("one_cycle")
def one_cycle(step: int, course: Course) -> float:
    """Return a cosine rise to 1 and a cosine fall to almost 0; no other warm-up.

    Example:
        >>> course = Course(epochs=1, steps_per_epoch=101)
        >>> round(one_cycle(0, course), 3), round(one_cycle(29, course), 3)
        (0.04, 1.0)
    """
    num_steps = course.num_steps
    peak = _ONE_CYCLE_RISE * num_steps - 1  # below 0 for a run of up to three steps
    if step <= peak:
        return _cosine_between(_ONE_CYCLE_START, 1.0, step / peak)
    share = (step - peak) / (num_steps - 1 - peak)
    return _cosine_between(1.0, _ONE_CYCLE_END, share)


def _cosine_between(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
