"""Bootstrap intervals: how far a metric could be off, given this many samples."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import ArrayLike
from tailshift.metrics import calibration_error
from tailshift.metrics.accuracy import check_scores
from tailshift.metrics.classwise import ClasswiseGaps
from tailshift.metrics.sample_scores import SampleScores, score_chunks
from tailshift.metrics.table import METRICS

BLOCK = 1 << 22  # resampling weights, or sums by bin and class, held at a time


@dataclass(frozen=True)
class Interval:
    """A metric of the samples as they are, and where its resampled values lie."""

    value: float
    low: float
    high: float


def bootstrap_intervals(
    logits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    num_bins: int = calibration_error.NUM_BINS,
    repeats: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    classwise: bool = False,
) -> dict[str, Interval]:
    """Return percentile bootstrap intervals of accuracy and the calibration metrics.

    Each repeat draws N samples with replacement. Binned calibration errors of drawn
    samples are larger on average than that of the samples themselves, as each bin's
    noise counts as error: an interval may lie above its value.

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        num_bins: Bins of equal width, for both calibration errors.
        repeats: How often the samples are drawn again.
        level: Share of the repeats that lie in the interval.
        seed: Seed for the resampling.
        classwise: Whether the classwise error is among them. It takes a pass over all
            probabilities for every few repeats.

    Returns:
        ``"accuracy"``, ``"ece"``, ``"classwise_ece"`` (if asked for), ``"brier"``
        and ``"nll"``.

    Example:
        >>> labels = torch.arange(200) % 4
        >>> logits = 2.0 * torch.eye(4)[labels.clamp(max=2)]  # class 3 is never right
        >>> bootstrap_intervals(logits, labels)["accuracy"]
        Interval(value=0.75, low=0.69, high=0.805)
    """
    calibration_error.check_binning(num_bins, "equal_width")
    _check_settings(repeats, level)
    f, y = check_scores(logits, labels, probs)
    f, y, is_probs = f.cpu(), y.cpu(), probs is not None
    scores = SampleScores.concatenate(
        [part for _, part, _ in score_chunks(f, y, is_probs=is_probs)]
    )
    blocks: dict[str, list[Tensor]] = defaultdict(list)
    per_repeat = max(len(y), num_bins * f.shape[1] if classwise else 1)
    for weights in _resamplings(len(y), repeats, seed, max(1, BLOCK // per_repeat)):
        for name, values in _means(scores, y, weights, num_bins).items():
            blocks[name].append(values)
        if classwise:
            errors = _classwise(f, y, weights, num_bins, is_probs)
            blocks["classwise_ece"].append(errors)
    return {
        name: _interval(torch.cat(blocks[name]), level)
        for name, _ in METRICS.items()
        if name in blocks
    }


def _check_settings(repeats: int, level: float) -> None:
    if repeats < 1:
        raise ValueError(f"`repeats` must be at least 1, but is {repeats}.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1, but is {level:g}.")


def _resamplings(
    num_samples: int, repeats: int, seed: int, block: int
) -> Iterator[Tensor]:
    """Yield how often each sample was drawn, (≤ block, N); at first, once each."""
    yield torch.ones(1, num_samples, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, repeats, block):
        size = min(block, repeats - start)
        drawn = torch.randint(num_samples, (size, num_samples), generator=generator)
        drawn += num_samples * torch.arange(size)[:, None]
        counts = torch.bincount(drawn.flatten(), minlength=size * num_samples)
        yield counts.view(size, num_samples).double()


def _means(
    scores: SampleScores, labels: Tensor, weights: Tensor, num_bins: int
) -> dict[str, Tensor]:
    """Return the metrics that are sums over samples, by weighting, each (R,)."""
    hit = (scores.predicted == labels).double()
    edges = calibration_error.equal_width_edges(num_bins, scores.confidence.dtype)
    gaps = torch.zeros(len(labels), num_bins, dtype=torch.float64)  # (N, M)
    where = calibration_error.bin_of(scores.confidence, edges)[:, None]
    gaps.scatter_(1, where, (hit - scores.confidence)[:, None])
    impossible = scores.nll.isinf()  # 0 · ∞ would be NaN
    nll = weights @ scores.nll.masked_fill(impossible, 0)
    nll = nll.masked_fill(weights @ impossible.double() > 0, torch.inf)
    sums = {
        "accuracy": weights @ hit,
        "ece": (weights @ gaps).abs().sum(dim=1),
        "brier": weights @ scores.brier,
        "nll": nll,
    }
    return {name: value / len(labels) for name, value in sums.items()}


def _classwise(
    scores: Tensor, labels: Tensor, weights: Tensor, num_bins: int, is_probs: bool
) -> Tensor:
    gaps = ClasswiseGaps(len(weights), num_bins, scores.shape[1])
    for rows, _, p in score_chunks(scores, labels, is_probs=is_probs):
        gaps.add(p, labels[rows], weights[:, rows])
    return gaps.errors()


def _interval(values: Tensor, level: float) -> Interval:
    """Return the first value, and the quantiles of the others."""
    ends = ((1 - level) / 2, (1 + level) / 2)
    # A value that occurred, not one between two: either may be infinite.
    low, high = np.quantile(values[1:].numpy(), ends, method="inverted_cdf")
    return Interval(values[0].item(), float(low), float(high))
