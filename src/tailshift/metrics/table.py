"""The table of metrics: what each is called, how it is printed and how it is found."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from torch import Tensor

from tailshift.checks import weighted_mean
from tailshift.metrics.accuracy import group_shares, mean_f1, share
from tailshift.metrics.calibration_error import (
    NUM_BINS,
    calibration_gap,
    equal_width_edges,
)
from tailshift.metrics.sample_scores import SampleScores
from tailshift.registry import Registry

NOTHING = "–"
"""Placeholder for a number that does not exist."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What some samples score, and how much each counts: what metrics are made of."""

    samples: SampleScores
    ranks: Tensor
    """How many classes score above the label, int64, shape (n,)."""
    labels: Tensor
    """:math:`y`, shape (n,)."""
    weights: Tensor
    """What each sample counts, float64, shape (n,)."""
    class_counts: Tensor | None
    """Training images of each class, shape (C,), if they are known."""
    classwise_error: float
    """Classwise calibration error: it needs all probabilities, which are not kept."""

    @cached_property
    def correct(self) -> Tensor:
        """Whether each answer is right, shape (n,)."""
        return self.samples.predicted == self.labels

    @cached_property
    def groups(self) -> dict[str, float]:
        """Accuracy over many-, medium- and few-shot classes; NaN if it is unknown."""
        if self.class_counts is None:
            return dict.fromkeys(("many", "medium", "few"), math.nan)
        return group_shares(self.correct, self.labels, self.class_counts, self.weights)

    @property
    def mean_f1(self) -> float:
        """F1, averaged over the classes that occur."""
        highest = max(self.labels.max(), self.samples.predicted.max())
        num_classes = int(highest) + 1  # those above do not occur
        return mean_f1(self.samples.predicted, self.labels, num_classes, self.weights)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error, 20 bins of equal width."""
        confidence = self.samples.confidence
        edges = equal_width_edges(NUM_BINS, confidence.dtype)
        return calibration_gap(confidence, self.correct, self.weights, edges)


@dataclass(frozen=True)
class Metric:
    """One score of :class:`~tailshift.evaluation.records.Record`."""

    name: str
    """The record's attribute."""
    title: str
    """As tables of this score alone are headed."""
    column: str
    """As a column among other scores is headed."""
    decimals: int
    """Digits after the point, as printed."""
    function: Callable[[Outcomes], float]
    """From what the samples score to the value, a fraction if it is in percent."""
    is_percent: bool = True
    """Whether the value is printed in percent."""
    is_high_better: bool = True
    """Whether the highest value is the best, or the lowest."""

    def text(self, value: float) -> str:
        """Return a value as it is printed; a dash for NaN.

        Example:
            >>> METRICS.get("accuracy").text(0.4567), METRICS.get("nll").text(2.0249)
            ('45.7', '2.02')
        """
        if math.isnan(value):
            return NOTHING
        return f"{self.scaled(value):.{self.decimals}f}"

    def scaled(self, value: float) -> float:
        """Return a value in the unit it is printed in."""
        return 100 * value if self.is_percent else value

    @property
    def sentence(self) -> str:
        """The heading, as lists show it."""
        return f"{self.heading}."

    @property
    def heading(self) -> str:
        """The title with its unit, or the way that is better."""
        return f"{self.title} {'in %' if self.is_percent else '(less is better)'}"


def _of_group(group: str) -> Metric:
    title = f"Accuracy of {group}-shot classes"
    return Metric(group, title, group.title(), 1, lambda o: o.groups[group])


def _mean(values: Tensor, outcomes: Outcomes) -> float:
    return weighted_mean(values, outcomes.weights)


_Error = partial(Metric, is_percent=False, is_high_better=False)
_TABLE = (
    Metric("accuracy", "Accuracy", "All", 1, lambda o: share(o.correct, o.weights)),
    *map(_of_group, ("many", "medium", "few")),
    Metric(
        "top5", "Top-5 accuracy", "Top-5", 1, lambda o: share(o.ranks < 5, o.weights)
    ),
    Metric("macro_f1", "Macro-F1", "Macro-F1", 1, lambda o: o.mean_f1),
    _Error("ece", "ECE", "ECE", 3, lambda o: o.calibration_error),
    _Error(
        "classwise_ece",
        "Classwise ECE",
        "Classwise ECE",
        5,
        lambda o: o.classwise_error,
    ),
    _Error("brier", "Brier score", "Brier", 3, lambda o: _mean(o.samples.brier, o)),
    _Error("nll", "NLL", "NLL", 2, lambda o: _mean(o.samples.nll, o)),
)
METRICS: Registry[Metric] = Registry("metric", base=Metric)
"""All metrics; tables have them in the order of registration."""

for _metric in _TABLE:
    METRICS.register(_metric.name)(_metric)

CALIBRATION = tuple(metric.name for metric in _TABLE if not metric.is_percent)
"""The metrics of the paper's Tables 10 and 11, beside accuracy."""


def check_metric(name: str) -> str:
    """Return a metric's name; an unknown one is refused with the nearest."""
    METRICS.get(name)
    return name
