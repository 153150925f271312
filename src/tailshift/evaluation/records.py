"""Records: how right saved logits are on each target, as they are and compensated."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.compensation import post_compensate
from tailshift.evaluation.targets import (
    describe,
    is_file,
    resolve_target,
    shifted_subset,
)
from tailshift.metrics.accuracy import group_shares, label_ranks, mean_f1, share
from tailshift.predictions import Predictions
from tailshift.priors import (
    PAPER_TARGETS,
    counts_from_labels,
    from_counts,
    parse_target,
)

AS_IS = "as_is"
"""The target that is the whole test set, whatever its label distribution."""

CHUNK = 1 << 18  # scores held at a time: one megabyte stays in the cache


@dataclass(frozen=True)
class Record:
    """What one set of logits scores on one target; all scores are fractions."""

    target: str
    """``"uniform"``, ``"forward:50"`` …, a file of counts as it was named, or
    ``"as_is"``."""
    compensated: bool
    """Whether the logits were compensated to the target prior."""
    num_samples: int
    """Size of the test set drawn to the target."""
    accuracy: float
    """Top-1 accuracy over all samples."""
    many: float
    """Accuracy over samples of classes with more than 100 training images, or NaN."""
    medium: float
    """Accuracy over samples of classes with 20 to 100 training images, or NaN."""
    few: float
    """Accuracy over samples of classes with fewer than 20 training images, or NaN."""
    top5: float
    """Share of samples whose label is among the five highest scores."""
    macro_f1: float
    """F1 averaged over the classes that occur."""


def evaluate(
    predictions: Predictions,
    targets: Sequence[str | os.PathLike[str]] = PAPER_TARGETS,
) -> list[Record]:
    r"""Return a raw record for each target and, where possible, a compensated one.

    For each target the first :math:`n_c` test samples of each class are taken, and
    :math:`p_t(c) = n_c / \sum_j n_j`. The compensated record is that of
    :func:`~tailshift.compensation.post_compensate` with this prior; it is there where
    ``predictions.trained_prior`` is. Group accuracies and the order of ``forward`` and
    ``backward`` need ``predictions.source_counts``. With neither, the one record
    is the raw one of the test set as it is.

    Args:
        predictions: Logits and labels of a test set. Where its classes differ in size,
            the named targets start from the smallest: further samples go unused.
        targets: ``"uniform"``, ``"forward:50"``, ``"backward:10"``, files of
            counts, or ``"as_is"``: the whole test set, raw, as its prior is not known
            but read from the labels.

    Example:
        >>> predictions = Predictions(
        ...     logits=torch.tensor([[3.0, 1.0], [2.0, 1.5]]),
        ...     labels=torch.tensor([0, 1]),
        ...     trained_prior=torch.tensor([0.75, 0.25]),
        ... )
        >>> raw, compensated = evaluate(predictions, ["uniform"])
        >>> raw.accuracy, compensated.accuracy
        (0.5, 1.0)
    """
    if isinstance(targets, str):
        raise TypeError(
            f"`targets` must be a list of targets, but is the string {targets!r}. "
            f"Write [{targets!r}]."
        )
    if predictions.source_counts is None and predictions.trained_prior is None:
        targets = [AS_IS]
    everything = torch.arange(len(predictions.labels))
    raw = _answers(predictions, everything)
    records = []
    for target in targets:
        if target == AS_IS:
            records.append(_record(predictions, AS_IS, everything, raw))
            continue
        counts = _target_counts(predictions, target)
        rows, p_t = shifted_subset(predictions.labels, counts), from_counts(counts)
        records.append(_record(predictions, describe(target), rows, raw[rows]))
        if predictions.trained_prior is not None:
            answers = _answers(predictions, rows, p_t)
            record = _record(predictions, describe(target), rows, answers, True)
            records.append(record)
    return records


def _target_counts(predictions: Predictions, target: str | os.PathLike[str]) -> Tensor:
    available = counts_from_labels(predictions.labels, predictions.num_classes)
    order = predictions.source_counts
    if order is None:
        if not is_file(target) and parse_target(str(target)).kind != "uniform":
            raise ValueError(
                f"Target {describe(target)!r} orders the classes by `source_counts`, "
                "but the predictions have none. Save them with the counts, or take "
                "'uniform', 'as_is' or a file of counts."
            )
        order = torch.zeros_like(available)
    return resolve_target(target, order, available)


def _answers(
    predictions: Predictions, rows: Tensor, target_prior: Tensor | None = None
) -> Tensor:
    """Return, for each row, the predicted class and the rank of the label, (n, 2).

    Rows are taken a chunk at a time: no second copy of the logits comes to be.
    """
    answers = torch.empty(len(rows), 2, dtype=torch.int64)
    size = max(1, CHUNK // predictions.num_classes)
    for chunk, out in zip(
        torch.split(rows, size), torch.split(answers, size), strict=True
    ):
        f = predictions.logits[chunk].float()  # (≤ size, C)
        if target_prior is not None:
            assert predictions.trained_prior is not None
            f = post_compensate(
                f, trained_prior=predictions.trained_prior, target_prior=target_prior
            )
        out[:, 0] = f.argmax(dim=1)
        out[:, 1] = label_ranks(f, predictions.labels[chunk])
    return answers


def _record(
    predictions: Predictions,
    target: str,
    rows: Tensor,
    answers: Tensor,
    compensated: bool = False,
) -> Record:
    y = predictions.labels[rows]
    predicted, ranks = answers.unbind(dim=1)
    groups = dict.fromkeys(("many", "medium", "few"), float("nan"))
    if predictions.source_counts is not None:
        groups = group_shares(predicted == y, y, predictions.source_counts)
    return Record(
        target=target,
        compensated=compensated,
        num_samples=len(y),
        accuracy=share(predicted == y),
        **groups,
        top5=share(ranks < 5),
        macro_f1=mean_f1(predicted, y, predictions.num_classes),
    )
