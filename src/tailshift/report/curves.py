"""Curves of the figures: probability by class and accuracy by target, per method."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift import priors
from tailshift.compensation import post_compensate
from tailshift.evaluation.summary import Summary
from tailshift.predictions import Predictions
from tailshift.report.rows import Cell, columns_of, rows_by_method
from tailshift.report.runs import ReportRun
from tailshift.report.series import class_order, series_of

_CHUNK = 4096  # test images that are held as float64 probabilities at a time


def average_probability(predictions: Predictions, *, compensated: bool) -> Tensor:
    """Return each class's mean probability over the test set, float64, shape (C,).

    Every class present weighs the same, so that the mean stands for a balanced test
    set; on one that is balanced this is the plain mean over its samples.

    Args:
        predictions: Logits, labels and, for ``compensated``, the trained prior.
        compensated: Move the logits to the uniform prior first.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 1.0986]])
        >>> predictions = Predictions(logits, torch.tensor([0, 1]))
        >>> average_probability(predictions, compensated=False)
        tensor([0.3750, 0.6250], dtype=torch.float64)
    """
    y, num_classes = predictions.labels, predictions.num_classes
    n = torch.bincount(y, minlength=num_classes)
    weights = 1 / (n[y] * (n > 0).sum()).double()  # (N,)
    mean = torch.zeros(num_classes, dtype=torch.float64)
    chunks = zip(
        torch.split(predictions.logits, _CHUNK),
        torch.split(weights, _CHUNK),
        strict=True,
    )
    for f, w in chunks:
        f = f.double()  # (_CHUNK, C)
        if compensated:
            assert predictions.logit_prior is not None
            f = post_compensate(
                f,
                logit_prior=predictions.logit_prior,
                target_prior=priors.uniform(num_classes),
            )
        mean += w @ f.softmax(-1)
    return mean


@dataclass(frozen=True, eq=False)
class ProbabilityCurve:
    """One line of the figure."""

    name: str
    method: str
    is_compensated: bool
    mean: Tensor
    """Mean probability of each class, the most frequent in training first, (C,)."""
    key: str = ""
    """The method's registered name, which its colour goes by."""

    def ends(self, share: float = 0.1) -> tuple[float, float]:
        """Return the mean over the first and over the last tenth of the classes."""
        size = max(1, round(share * len(self.mean)))
        return self.mean[:size].mean().item(), self.mean[-size:].mean().item()


def probability_curves(runs: Sequence[ReportRun]) -> list[ProbabilityCurve]:
    r"""Return :math:`E_{p_u}[p(c|x)]` of each class, raw and compensated to uniform.

    It is 1/C for every class if the probabilities are those of the uniform target.

    Args:
        runs: Runs on the same classes; the mean is over seeds too.
    """
    curves = []
    for series in series_of(runs, "uniform"):
        means = [
            average_probability(p, compensated=series.is_compensated)
            for p in series.predictions
        ]
        mean = torch.stack(means).mean(0)[class_order(series.predictions[0])]
        about = series.name, series.method, series.is_compensated
        curves.append(ProbabilityCurve(*about, mean, series.key))
    return curves


@dataclass(frozen=True)
class ShiftCurve:
    """One line of the figure; accuracies are fractions, NaN if there is none."""

    name: str
    method: str
    is_compensated: bool
    means: tuple[float, ...]
    """One for each target."""
    sds: tuple[float, ...]
    """Standard deviations over seeds; 0 for a single one."""
    key: str = ""
    """The method's registered name, which its colour goes by."""


def shift_curves(
    summaries: Iterable[Summary],
) -> tuple[tuple[str, ...], list[ShiftCurve]]:
    """Return the targets, in the order they come in, and a line for each method.

    Args:
        summaries: Accuracies by method and target.
    """
    rows = rows_by_method(summaries)
    targets = tuple(columns_of(rows))
    curves = []
    for row in rows:
        cells = [row.cells.get(t, Cell(math.nan, math.nan, 0)) for t in targets]
        means, sds = tuple(c.mean for c in cells), tuple(c.sd for c in cells)
        about = row.name, row.method, row.is_compensated
        curves.append(ShiftCurve(*about, means, sds, row.key))
    return targets, curves
