"""Scoring: one pass over saved logits for each distinct compensation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.compensation import log_prior_ratio
from tailshift.metrics.accuracy import group_shares, label_ranks, mean_f1, share
from tailshift.metrics.binning import NUM_BINS, equal_width_edges
from tailshift.metrics.calibration_error import calibration_gap
from tailshift.metrics.classwise import ClasswiseGaps
from tailshift.metrics.sample_scores import SampleScores, row_slices, score_chunk
from tailshift.metrics.weights import weighted_mean
from tailshift.predictions import Predictions

SAME = 1e-12
"""Log ratios that differ by less are one compensation."""


def compensation(predictions: Predictions, target_prior: Tensor) -> Tensor | None:
    r"""Return :math:`\log p_t - \log p_{trained}`, the largest 0, float64, (C,).

    None if that adds the same to every class: the logits answer for the target already.
    """
    assert predictions.trained_prior is not None
    ratio = log_prior_ratio(
        predictions.trained_prior, target_prior, num_classes=predictions.num_classes
    )
    ratio = ratio - ratio.max()
    return None if ratio.min() > -SAME else ratio


@dataclass(frozen=True)
class Scored:
    """What some samples score under one compensation, weighted in several ways."""

    samples: SampleScores
    ranks: Tensor
    """How many classes score above the label, int64, shape (n,)."""
    labels: Tensor
    """:math:`y`, shape (n,)."""
    weights: Tensor
    """What each sample counts in each weighting, shape (T, n)."""
    classwise: Tensor
    """Classwise calibration error in each weighting, shape (T,)."""

    def measures(self, t: int, class_counts: Tensor | None) -> dict[str, float]:
        """Return the scores of a record in weighting t."""
        samples, y, w = self.samples, self.labels, self.weights[t].double()
        correct = samples.predicted == y
        groups = dict.fromkeys(("many", "medium", "few"), float("nan"))
        if class_counts is not None:
            groups = group_shares(correct, y, class_counts, w)
        edges = equal_width_edges(NUM_BINS, samples.confidence.dtype)
        return {
            "accuracy": share(correct, w),
            **groups,
            "top5": share(self.ranks < 5, w),
            "macro_f1": mean_f1(samples.predicted, y, self.num_classes, w),
            "ece": calibration_gap(samples.confidence, correct, w, edges),
            "classwise_ece": self.classwise[t].item(),
            "brier": weighted_mean(samples.brier, w),
            "nll": weighted_mean(samples.nll, w),
        }

    @property
    def num_classes(self) -> int:
        """A number above every class id among answers and labels."""
        return int(max(self.labels.max(), self.samples.predicted.max())) + 1


def score(predictions: Predictions, ratio: Tensor | None, weights: Tensor) -> Scored:
    """Return what the samples that count score; rows are read a chunk at a time.

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
    samples = SampleScores.concatenate(parts)
    return Scored(samples, torch.cat(ranks), y, weights, gaps.errors())


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
