"""Calibration error: how far confidence is from accuracy, over bins of confidence."""

import torch
from torch import Tensor

from tailshift.metrics.binning import (
    NUM_BINS,
    Binning,
    bin_of,
    check_binning,
    equal_mass_edges,
    equal_width_edges,
)
from tailshift.metrics.sample_scores import score_samples
from tailshift.metrics.weights import check_weights
from tailshift.predictions import ArrayLike


def expected_calibration_error(
    logits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    num_bins: int = NUM_BINS,
    binning: Binning = "equal_width",
    sample_weights: ArrayLike | None = None,
) -> float:
    r"""Return the expected calibration error of the top answers.

    .. math:: ECE = \sum_{m=1}^M \frac{|B_m|}{N} \, |acc(B_m) - conf(B_m)|

    [hong2021] Eq. (28), after [naeini2015]; lower is better, in [0, 1]. The bin
    :math:`B_m` holds the samples whose **highest** probability lies in
    :math:`((m-1)/M, m/M]`, conf is its mean and acc the share of right answers. (The
    paper's text writes the label's probability; its numbers are of the highest.)

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        num_bins: :math:`M`.
        binning: ``"equal_width"`` as above, or ``"equal_mass"``: edges at the
            quantiles of the confidence, so that bins hold equally many samples.
        sample_weights: What each sample counts, shape (N,); all the same by default.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.3, 0.7]])
        >>> ece = expected_calibration_error(
        ...     probs=probs, labels=torch.tensor([0, 1, 1])
        ... )
        >>> round(ece, 4)  # 2/3 · |1/2 − 0.8| + 1/3 · |1 − 0.7|
        0.3
    """
    check_binning(num_bins, binning)
    scores, y = score_samples(logits, labels, probs)
    w = check_weights(sample_weights, y)
    hit = scores.predicted == y
    edges = lay_edges(scores.confidence, w, num_bins, binning)
    return calibration_gap(scores.confidence, hit, w, edges)


def lay_edges(p: Tensor, weights: Tensor, num_bins: int, binning: Binning) -> Tensor:
    """Return the edges of the bins of ``p``, in its dtype, shape (…, M + 1)."""
    if binning == "equal_width":
        return equal_width_edges(num_bins, p.dtype)
    return equal_mass_edges(p, weights, num_bins)


def calibration_gap(p: Tensor, hit: Tensor, weights: Tensor, edges: Tensor) -> float:
    """Return Σ over bins of |Σ of weight · (hit − p)|, divided by the weight.

    Args:
        p: Confidence, shape (N,).
        hit: Whether what it is the confidence in came true, shape (N,).
        weights: What each sample counts, float64, shape (N,).
        edges: Of the bins, shape (M + 1,).
    """
    gaps = weights * (hit.double() - p.double())
    by_bin = torch.bincount(bin_of(p, edges), gaps, minlength=len(edges) - 1)
    return (by_bin.abs().sum() / weights.sum()).item()
