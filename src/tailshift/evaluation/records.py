"""Records: how right saved logits are on each target, as they are and compensated."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from tailshift.compensation import log_prior_ratio
from tailshift.evaluation.sampling import (
    USES_ALL_SAMPLES,
    Sampling,
    TestSet,
    check_sampling,
    class_weighted_error,
    default_sampling,
    draw_test_set,
    subset_deviation,
)
from tailshift.metrics.accuracy import label_ranks
from tailshift.metrics.calibration_error import NUM_BINS
from tailshift.metrics.classwise import ClasswiseGaps
from tailshift.metrics.sample_scores import SampleScores, row_slices, score_chunk
from tailshift.metrics.table import METRICS, Outcomes
from tailshift.predictions import Predictions
from tailshift.priors import counts_from_labels, from_counts
from tailshift.runs.run import Run, as_run
from tailshift.targets import PAPER_TARGETS, ordering_counts

SAME = 1e-12
"""Log ratios that differ by less are one compensation."""


def compensation(predictions: Predictions, target_prior: Tensor) -> Tensor | None:
    r"""Return :math:`\log p_t - \log p_{trained}`, the largest 0, float64, (C,).

    None if that adds the same to every class: the logits answer for the target already.
    """
    assert predictions.logit_prior is not None
    ratio = log_prior_ratio(
        predictions.logit_prior, target_prior, num_classes=predictions.num_classes
    )
    ratio = ratio - ratio.max()
    return None if ratio.min() > -SAME else ratio


def score(
    predictions: Predictions, ratio: Tensor | None, weights: Tensor
) -> Iterator[Outcomes]:
    """Return what the samples score in each weighting; rows are read in chunks.

    Args:
        predictions: The saved logits.
        ratio: From :func:`compensation`.
        weights: What each sample counts in each weighting, shape (T, N).
    """
    rows = weights.amax(dim=0).nonzero()[:, 0]  # (n,)
    y, weights = predictions.labels[rows], weights[:, rows]
    gaps = ClasswiseGaps(len(weights), NUM_BINS, predictions.num_classes)
    parts, ranks = [], []
    for chunk in row_slices(len(rows), predictions.num_classes):
        f = _compensated(predictions.logits, rows[chunk], ratio)
        part, p = score_chunk(f, y[chunk])
        gaps.add(p, y[chunk], weights[:, chunk])
        parts.append(part)
        ranks.append(_ranks(f, y[chunk], part.predicted))
    samples, label_rank = SampleScores.concatenate(parts), torch.cat(ranks)
    counts = predictions.group_counts
    return (
        Outcomes(samples, label_rank, y, w.double(), counts, error)
        for w, error in zip(weights, gaps.errors().tolist(), strict=True)
    )


def _ranks(f: Tensor, labels: Tensor, predicted: Tensor) -> Tensor:
    """Return the labels' ranks; that of a right answer is 0 and not looked up."""
    ranks = torch.zeros_like(labels)
    wrong = (predicted != labels).nonzero()[:, 0]
    ranks[wrong] = label_ranks(f[wrong], labels[wrong])
    return ranks


def _compensated(logits: Tensor, rows: Tensor, ratio: Tensor | None) -> Tensor:
    """Return the rows' logits + ratio, float32, shape (n, C)."""
    first, last = int(rows[0]), int(rows[-1])
    is_run = len(rows) == last - first + 1  # then no index is needed
    f = (logits[first : last + 1] if is_run else logits[rows]).float()
    return f if ratio is None else f + ratio.float()


AS_IS = "as_is"
"""The target that is the whole test set, whatever its label distribution."""


@dataclass(frozen=True)
class Record:
    """What one set of logits scores on one target; all scores are fractions."""

    target: str
    """``"uniform"``, ``"forward:50"`` …, a file of counts as it was named, or
    ``"as_is"``."""
    compensated: bool
    """Whether the logits were compensated to the target prior."""
    num_samples: int
    """Size of the test set drawn to the target, or of the whole if none is drawn."""
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
    ece: float = math.nan
    """Expected calibration error, 20 bins of equal width."""
    classwise_ece: float = math.nan
    """Classwise calibration error, likewise."""
    brier: float = math.nan
    """Brier score."""
    nll: float = math.nan
    """Negative log-likelihood; infinite if a label had probability 0."""
    sampling: Sampling = "first"
    """How the test set was drawn, if one was."""
    num_subsets: int = 1
    """How many times; the scores are means over these."""
    deviation: "Record | None" = None
    """Standard deviations (n − 1) of the scores over several subsets."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Scores of the metrics that plugins have registered."""
    num_effective: float = math.nan
    r"""Number of equally weighted samples that are as precise, by Kish:
    :math:`(\sum w)^2 / \sum w^2`; by default ``num_samples``, as if all weigh alike."""
    subset_deviation: float = math.nan
    """Standard deviation of the accuracy over all test sets with the target's counts,
    for ``"expected"``; otherwise NaN."""
    standard_error: float = math.nan
    """Standard error of the accuracy over test samples, for ``"expected"`` and
    ``"reweighted"``; otherwise NaN."""

    def __post_init__(self) -> None:
        if math.isnan(self.num_effective):
            object.__setattr__(self, "num_effective", float(self.num_samples))

    def score(self, metric: str) -> float:
        """Return the score of a metric by its name."""
        value: float = (
            self.others[metric] if metric in self.others else vars(self)[metric]
        )
        return value


def evaluate(
    source: Predictions | Run | str | os.PathLike[str],
    targets: Sequence[str | os.PathLike[str]] = PAPER_TARGETS,
    *,
    sampling: Sampling | None = None,
    repeats: int = 10,
    seed: int = 0,
) -> list[Record]:
    r"""Return a raw record for each target and, if possible, a compensated one.

    If the classes of the test set are equal in size, accuracy is the expectation over
    all test sets with the paper's counts :math:`n_c`, and
    :math:`p_t(c) = n_c / \sum_j n_j`; otherwise samples are re-weighted to
    :math:`p_t`. The compensated record is that of
    :func:`~tailshift.compensation.post_compensate` with this prior; it is there if
    ``predictions.logit_prior`` is. Group accuracies and the order of ``forward`` and
    ``backward`` need ``predictions.source_counts``. With neither, the one record
    is the raw one of the test set as it is. ``pandas.DataFrame(evaluate(predictions))``
    has a line for each record and a column for each of its fields; ``deviation`` is
    empty, or a mapping for random subsets.

    Args:
        source: Logits and labels of a test set, or their file; or a run or its
            directory, whose test logits are scored. Classes that do not occur in the
            test set are skipped by the named targets.
        targets: Names of :class:`~tailshift.target_names.Shift`, files of
            counts, or ``"as_is"``: the whole test set, raw, as its prior is not known
            but read from the labels.
        sampling: ``"expected"``, the expectation over all test sets with the target's
            counts; ``"first"``, the first samples of each class; ``"random"``, the mean
            over several random test sets, with their standard deviations; or
            ``"reweighted"``, all samples weighted to the target. By default
            ``"expected"`` if the test set is balanced, else ``"reweighted"``. See
            :func:`~tailshift.evaluation.sampling.draw_test_set`.
        repeats: How many random subsets.
        seed: Seed for the random subsets.

    Example:
        >>> predictions = Predictions(
        ...     logits=torch.tensor([[3.0, 1.0], [2.0, 1.5]]),
        ...     labels=torch.tensor([0, 1]),
        ...     logit_prior=torch.tensor([0.75, 0.25]),
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
    predictions = _test_predictions(source)
    sampling = sampling or default_sampling(predictions.labels)
    check_sampling(sampling, repeats)
    if predictions.source_counts is None and predictions.logit_prior is None:
        targets = [AS_IS]
    wanted = []
    for target in targets:
        test_set = _test_set(predictions, target, sampling, repeats, seed)
        wanted.append((test_set, False))
        if predictions.logit_prior is not None and target != AS_IS:
            wanted.append((test_set, True))
    return _records(predictions, wanted, sampling)


def _test_predictions(
    source: Predictions | Run | str | os.PathLike[str],
) -> Predictions:
    if isinstance(source, Predictions):
        return source
    if isinstance(source, Run) or Path(source).is_dir():
        return as_run(source).predictions("test")
    return Predictions.load(source)


def _test_set(
    predictions: Predictions,
    target: str | os.PathLike[str],
    sampling: Sampling,
    repeats: int,
    seed: int,
) -> TestSet:
    y, num_classes = predictions.labels, predictions.num_classes
    if target == AS_IS:
        prior = from_counts(counts_from_labels(y, num_classes))
        return TestSet(AS_IS, prior, torch.ones(1, len(y)))
    return draw_test_set(
        target,
        y,
        ordering_counts(target, predictions.source_counts, num_classes),
        sampling=sampling,
        repeats=repeats,
        seed=seed,
        class_names=predictions.class_names,
    )


def _records(
    predictions: Predictions, wanted: Sequence[tuple[TestSet, bool]], sampling: Sampling
) -> list[Record]:
    """Return the records, in their order, by one pass for each compensation."""
    records: dict[int, Record] = {}
    for ratio, indices in _passes(predictions, wanted):
        sets = [wanted[index][0] for index in indices]
        outcomes = score(predictions, ratio, torch.cat([s.weights for s in sets]))
        for index, test_set in zip(indices, sets, strict=True):
            drawings = [next(outcomes) for _ in test_set.weights]
            is_compensated = wanted[index][1]
            records[index] = _record(test_set, is_compensated, drawings, sampling)
    return [records[index] for index in range(len(wanted))]


def _passes(
    predictions: Predictions, wanted: Sequence[tuple[TestSet, bool]]
) -> list[tuple[Tensor | None, list[int]]]:
    """Return each distinct compensation with the indices of what it is wanted for."""
    passes: dict[bytes, tuple[Tensor | None, list[int]]] = {}
    for index, (test_set, is_compensated) in enumerate(wanted):
        ratio = None
        if is_compensated:
            ratio = compensation(predictions, test_set.target_prior)
        key = b"" if ratio is None else ratio.numpy().tobytes()
        passes.setdefault(key, (ratio, []))[1].append(index)
    return list(passes.values())


def _record(
    test_set: TestSet,
    is_compensated: bool,
    drawings: Sequence[Outcomes],
    sampling: Sampling,
) -> Record:
    """Return the mean over random subsets, and their deviation."""
    w = test_set.weights[0].double()  # (N,); every drawing has the same counts
    about: dict[str, Any] = {
        "target": test_set.target,
        "compensated": is_compensated,
        "num_samples": int(w.count_nonzero()),
        "num_effective": float(w.sum() ** 2 / w.square().sum()),
        "sampling": "first" if test_set.target == AS_IS else sampling,  # all are taken
        "num_subsets": len(drawings),
    }
    columns = {
        name: [metric.function(drawing) for drawing in drawings]
        for name, metric in METRICS.items()
    }
    means = _fields({name: fmean(values) for name, values in columns.items()})
    about |= _spreads(test_set, drawings[0], sampling)
    if len(drawings) == 1:
        return Record(**about | means)
    spread = _fields({name: deviation(values) for name, values in columns.items()})
    return Record(**about | means, deviation=Record(**about | spread))


def _spreads(
    test_set: TestSet, outcomes: Outcomes, sampling: Sampling
) -> dict[str, float]:
    """Return the spreads of an accuracy that all samples of each class make up."""
    if sampling not in USES_ALL_SAMPLES or test_set.target == AS_IS:
        return {}
    correct, y = outcomes.correct, outcomes.labels
    spreads = {
        "standard_error": class_weighted_error(correct, y, test_set.target_prior)
    }
    if test_set.counts is not None:
        spreads["subset_deviation"] = subset_deviation(correct, y, test_set.counts)
    return spreads


def effective_text(num_effective: float) -> str:
    """Return an effective number of samples as CSV files have it.

    Example:
        >>> effective_text(41.56), effective_text(500.0)
        ('41.6', '500')
    """
    return f"{num_effective:.1f}".removesuffix(".0")


def _fields(scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the scores as a record's fields; those that it has no field for, last."""
    known = Record.__dataclass_fields__
    own = {name: value for name, value in scores.items() if name in known}
    return own | {"others": {n: v for n, v in scores.items() if n not in known}}


def deviation(values: Sequence[float]) -> float:
    """Return the deviation (n − 1); NaN if a value is NaN or infinite."""
    return stdev(values) if all(map(math.isfinite, values)) else math.nan
