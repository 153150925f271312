"""What a line or a panel stands for: a method, raw or compensated, over its seeds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tailshift.evaluation.records import compensation
from tailshift.evaluation.sampling import TestSet, draw_test_set
from tailshift.predictions import Predictions
from tailshift.report.runs import ReportRun
from tailshift.report.tables import inferences, row_name
from tailshift.targets import class_order


@dataclass(frozen=True, eq=False)
class Series:
    """A method, raw or compensated to a target, and the predictions of its runs."""

    name: str
    """As legends show it: "PC X" for the compensated answers of X."""
    method: str
    is_compensated: bool
    predictions: tuple[Predictions, ...]
    """One for each seed."""


def series_of(runs: Sequence[ReportRun], target: str = "uniform") -> list[Series]:
    """Return what figures on a target show, in the order the methods come in.

    Each method has its raw and its compensated answers, but for two cases. LADE's
    inference is the compensation. And where logits carry the target's prior already,
    both are the same, and called as the method is.

    Args:
        runs: Runs on the same classes; those that differ only in the seed belong
            together.
        target: The name of a label distribution, or a file of counts.
    """
    by_method: dict[str, list[Predictions]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run.predictions)
    series = []
    for method, of_seeds in by_method.items():
        known = all(p.trained_prior is not None for p in of_seeds)
        names = {way: series_name(method, way) for way in shown_ways(method, known)}
        if known and not _changes(of_seeds, target):
            names = {True: method}
        series += [
            Series(name, method, is_compensated, tuple(of_seeds))
            for is_compensated, name in names.items()
        ]
    return series


def series_name(method: str, is_compensated: bool) -> str:
    """Return "PC X" for the compensated answers of X; every LADE keeps its name.

    Example:
        >>> series_name("LADE (α = 0.1)", True), series_name("Softmax", True)
        ('LADE (α = 0.1)', 'PC Softmax')
    """
    return method if _family(method) == "LADE" else row_name(method, is_compensated)


def shown_ways(method: str, has_compensated: bool) -> tuple[bool, ...]:
    """Return which of raw (False) and compensated (True) are shown of a method."""
    return inferences(_family(method), has_compensated)


def _family(method: str) -> str:
    """Return ``"LADE"`` for every variant of it: its inference is the compensation."""
    return "LADE" if re.match(r"LADE\b", method) else method


def _changes(of_seeds: Sequence[Predictions], target: str) -> bool:
    return any(
        compensation(p, weigh_samples(p, target).target_prior) is not None
        for p in of_seeds
    )


def weigh_samples(predictions: Predictions, target: str) -> TestSet:
    r"""Return :math:`p_t` and the weight :math:`p_t(y)/n_y` of every test sample.

    On the uniform target each class weighs the same, which is the plain mean where
    the test set is balanced.
    """
    p = predictions
    order = class_order(target, p.source_counts, p.num_classes)
    return draw_test_set(
        target, p.labels, order, sampling="reweighted", class_names=p.class_names
    )


def answers(predictions: Predictions, target: str, *, compensated: bool) -> Tensor:
    """Return the logits, compensated to a target or as they are, float32, (N, C)."""
    f = predictions.logits.float()
    if not compensated:
        return f
    ratio = compensation(predictions, weigh_samples(predictions, target).target_prior)
    return f if ratio is None else f + ratio.float()
