"""Measures: the scores of a record, how they are written and which way is better."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from tailshift.registry import did_you_mean

NOTHING = "–"
"""What stands where there is no number."""


@dataclass(frozen=True)
class Measure:
    """One score of :class:`~tailshift.evaluation.records.Record`."""

    name: str
    """The record's attribute."""
    title: str
    """As tables head it."""
    decimals: int
    """Digits after the point, as printed."""
    is_percent: bool = True
    """Whether the fraction is printed in percent."""
    is_high_better: bool = True

    def text(self, value: float) -> str:
        """Return a value as it is printed; a dash for NaN.

        Example:
            >>> MEASURES["accuracy"].text(0.4567), MEASURES["nll"].text(2.0249)
            ('45.7', '2.02')
        """
        if math.isnan(value):
            return NOTHING
        return f"{self.scaled(value):.{self.decimals}f}"

    def scaled(self, value: float) -> float:
        """Return a value in the unit it is printed in."""
        return 100 * value if self.is_percent else value

    @property
    def heading(self) -> str:
        """The title with its unit, or the way that is better."""
        return (
            f"{self.title} in %"
            if self.is_percent
            else f"{self.title} (less is better)"
        )


def _error(name: str, title: str, decimals: int) -> Measure:
    return Measure(name, title, decimals, is_percent=False, is_high_better=False)


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("accuracy", "Accuracy", 1),
        Measure("many", "Accuracy of many-shot classes", 1),
        Measure("medium", "Accuracy of medium-shot classes", 1),
        Measure("few", "Accuracy of few-shot classes", 1),
        Measure("top5", "Top-5 accuracy", 1),
        Measure("macro_f1", "Macro-F1", 1),
        _error("ece", "ECE", 3),
        _error("classwise_ece", "Classwise ECE", 5),
        _error("brier", "Brier score", 3),
        _error("nll", "NLL", 2),
    )
}
"""All measures by the record's attribute."""

CALIBRATION = ("ece", "classwise_ece", "brier", "nll")
"""The measures of the paper's Tables 10 and 11, beside accuracy."""


def check_measure(name: str) -> str:
    """Return a measure's name; an unknown one is refused with the nearest."""
    if name not in MEASURES:
        hint = did_you_mean(name, list(MEASURES)) or ";"
        raise ValueError(f"unknown metric {name!r}{hint} Known: {', '.join(MEASURES)}")
    return name


def deviation(values: Sequence[float]) -> float:
    """Return the deviation (n − 1); NaN where a value is NaN or infinite."""
    return stdev(values) if all(map(math.isfinite, values)) else math.nan
