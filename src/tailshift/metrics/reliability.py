"""Reliability diagrams: confidence against accuracy, bin by bin."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.metrics.binning import NUM_BINS, Binning, bin_of, check_binning
from tailshift.metrics.calibration_error import lay_edges
from tailshift.metrics.sample_scores import score_samples
from tailshift.metrics.weights import check_weights
from tailshift.predictions import ArrayLike


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """What a reliability diagram shows; M bins of the highest probability."""

    edges: Tensor
    """Edges of the bins, float64, shape (M + 1,); bin m is (edge m, edge m + 1]."""
    counts: Tensor
    """Samples in each bin, int64, shape (M,)."""
    shares: Tensor
    """Each bin's part of all samples' weight, float64, shape (M,), sums to 1."""
    confidence: Tensor
    """Mean highest probability in each bin, float64, (M,); NaN where it is empty."""
    accuracy: Tensor
    """Share of right answers in each bin, float64, (M,); NaN where it is empty."""

    @property
    def expected_calibration_error(self) -> float:
        """The mean of |accuracy − confidence| by the bins' shares."""
        gaps = (self.accuracy - self.confidence).abs()
        return (self.shares * gaps).nansum().item()


def reliability_diagram(
    logits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    num_bins: int = NUM_BINS,
    binning: Binning = "equal_width",
    sample_weights: ArrayLike | None = None,
) -> ReliabilityDiagram:
    """Return the bins of a reliability diagram; [hong2021] Figures 4 and 6.

    Args:
        logits: This and all others are as in
            :func:`~tailshift.metrics.calibration_error.expected_calibration_error`.
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        num_bins: :math:`M`.
        binning: ``"equal_width"`` or ``"equal_mass"``.
        sample_weights: What each sample counts, shape (N,); all the same by default.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> diagram = reliability_diagram(probs=probs, labels=labels, num_bins=4)
        >>> diagram.counts
        tensor([0, 0, 1, 2])
        >>> diagram.accuracy
        tensor([   nan,    nan, 1.0000, 0.5000], dtype=torch.float64)
    """
    check_binning(num_bins, binning)
    scores, y = score_samples(logits, labels, probs)
    w = check_weights(sample_weights, y)
    edges = lay_edges(scores.confidence, w, num_bins, binning)
    bins = bin_of(scores.confidence, edges)

    def total(values: Tensor) -> Tensor:
        return torch.bincount(bins, values.double(), num_bins).cpu()

    weight = total(w)  # (M,); 0 / 0 is NaN
    return ReliabilityDiagram(
        edges=edges.double().cpu(),
        counts=torch.bincount(bins[w > 0], minlength=num_bins).cpu(),
        shares=weight / weight.sum(),
        confidence=total(w * scores.confidence) / weight,
        accuracy=total(w * (scores.predicted == y)) / weight,
    )
