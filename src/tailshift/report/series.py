"""What a line or a panel stands for: a method, raw or compensated, over its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.evaluation.records import compensation
from tailshift.evaluation.sampling import TestSet, draw_test_set
from tailshift.predictions import Predictions
from tailshift.report.runs import ReportRun, by_method, row_names
from tailshift.targets import ordering_counts


def class_order(predictions: Predictions) -> Tensor:
    """Return class ids by training count, descending; by id if it is unknown."""
    if predictions.source_counts is None:
        return torch.arange(predictions.num_classes)
    return predictions.source_counts.argsort(descending=True, stable=True)


@dataclass(frozen=True, eq=False)
class Series:
    """A method, raw or compensated to a target, and the predictions of its runs."""

    name: str
    """As legends show it: "PC X" for the compensated answers of X."""
    method: str
    is_compensated: bool
    predictions: tuple[Predictions, ...]
    """One for each seed."""
    key: str = ""
    """The method's registered name, which its colour goes by."""


def series_of(runs: Sequence[ReportRun], target: str = "uniform") -> list[Series]:
    """Return what figures on a target show, in the order the methods come in.

    Each method has the rows of :func:`~tailshift.report.runs.row_names`. Only if its
    logits carry the target's prior already, raw and compensated are the same: one line,
    called as the method is.

    Args:
        runs: Runs on the same classes; those that differ only in the seed belong
            together.
        target: The name of a label distribution, or a file of counts.
    """
    series = []
    for method, of_method in by_method(runs).items():
        of_seeds = tuple(run.predictions for run in of_method)
        known = all(p.logit_prior is not None for p in of_seeds)
        first = of_method[0]
        names = row_names(method, compensates=first.compensates, has_compensated=known)
        if known and not _changes(of_seeds, target):
            names = {True: method}
        series += [
            Series(name, method, is_compensated, of_seeds, first.key)
            for is_compensated, name in names.items()
        ]
    return series


def _changes(of_seeds: Sequence[Predictions], target: str) -> bool:
    return any(
        compensation(p, weigh_samples(p, target).target_prior) is not None
        for p in of_seeds
    )


def weigh_samples(predictions: Predictions, target: str) -> TestSet:
    r"""Return :math:`p_t` and the weight :math:`p_t(y)/n_y` of every test sample.

    On the uniform target each class weighs the same, which is the plain mean if
    the test set is balanced.
    """
    p = predictions
    order = ordering_counts(target, p.source_counts, p.num_classes)
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
