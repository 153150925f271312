"""Calibration error: how far confidence is from accuracy, over bins of confidence."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tailshift.checks import ArrayLike, check_weights
from tailshift.metrics.sample_scores import score_samples

Binning: TypeAlias = Literal["equal_width", "equal_mass"]
"""How bins are laid: at m/M, or so that each holds the same weight of samples."""

NUM_BINS = 20
"""Default number of bins: that of [hong2021]."""


def check_binning(num_bins: int, binning: str) -> None:
    """Refuse fewer bins than one, and a layout that is not known."""
    if isinstance(num_bins, bool) or not isinstance(num_bins, int) or num_bins < 1:
        raise ValueError(f"`num_bins` must be an integer >= 1, but is {num_bins!r}.")
    if binning not in get_args(Binning):
        raise ValueError(
            f"`binning` must be one of {', '.join(get_args(Binning))}, "
            f"but is {binning!r}."
        )


def equal_width_edges(num_bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the edges m/M, rounded to the probabilities' dtype, shape (M + 1,).

    Example:
        >>> equal_width_edges(4)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    return (torch.arange(num_bins + 1, dtype=torch.float64) / num_bins).to(dtype)


def equal_mass_edges(p: Tensor, weights: Tensor, num_bins: int) -> Tensor:
    r"""Return edges between which the samples weigh the same, shape (…, M + 1).

    Edge m is the smallest value :math:`v` with at least m/M of the weight at
    :math:`p \leq v`, the first is 0 and the last 1. Equal values share a bin, so that
    bins may hold more than their part, or nothing.

    Args:
        p: Probabilities, shape (…, N).
        weights: What each sample counts, float64, shape (N,).
        num_bins: :math:`M`.

    Example:
        >>> p = torch.tensor([0.1, 0.9, 0.2, 0.3])
        >>> equal_mass_edges(p, torch.ones(4, dtype=torch.float64), 2)
        tensor([0.0000, 0.2000, 1.0000])
    """
    ordered, order = p.sort(dim=-1)
    mass = weights[order].cumsum(dim=-1)  # (…, N)
    wanted = torch.arange(1, num_bins, dtype=torch.float64) * weights.sum() / num_bins
    wanted = wanted.to(mass.device).expand(*mass.shape[:-1], num_bins - 1).contiguous()
    at = torch.searchsorted(mass, wanted).clamp(max=p.shape[-1] - 1)
    inner = ordered.gather(-1, at)
    zero = torch.zeros_like(ordered[..., :1])
    return torch.cat([zero, inner, zero + 1], dim=-1)


def bin_of(p: Tensor, edges: Tensor) -> Tensor:
    """Return the index m − 1 of the bin (edge m−1, edge m] of each value, int64.

    What lies at the lowest edge, or below, belongs to the first bin.

    Example:
        >>> bin_of(torch.tensor([0.0, 0.25, 0.26, 1.0]), equal_width_edges(4).float())
        tensor([0, 0, 1, 3])
    """
    inner = edges[..., 1:-1].to(p.device).contiguous()
    return torch.searchsorted(inner, p.contiguous())


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
    edges = _lay_edges(scores.confidence, w, num_bins, binning)
    return calibration_gap(scores.confidence, hit, w, edges)


def _lay_edges(p: Tensor, weights: Tensor, num_bins: int, binning: Binning) -> Tensor:
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
        edges: Edges of the bins, shape (M + 1,).
    """
    gaps = weights * (hit.double() - p.double())
    by_bin = torch.bincount(bin_of(p, edges), gaps, minlength=len(edges) - 1)
    return (by_bin.abs().sum() / weights.sum()).item()


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
    """Mean highest probability in each bin, float64, (M,); NaN if it is empty."""
    accuracy: Tensor
    """Share of right answers in each bin, float64, (M,); NaN if it is empty."""

    @property
    def expected_calibration_error(self) -> float:
        """The mean gap of accuracy and confidence by the bins' shares."""
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
    edges = _lay_edges(scores.confidence, w, num_bins, binning)
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
