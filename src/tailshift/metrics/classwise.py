"""Classwise calibration error: each class's probability against its frequency."""

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import ArrayLike, check_weights
from tailshift.metrics import calibration_error
from tailshift.metrics.accuracy import check_scores
from tailshift.metrics.sample_scores import score_chunks

_COLUMNS = 1 << 22  # probabilities held at a time while whole columns are sorted


def classwise_calibration_error(
    logits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    num_bins: int = calibration_error.NUM_BINS,
    binning: calibration_error.Binning = "equal_width",
    sample_weights: ArrayLike | None = None,
) -> float:
    r"""Return the calibration error of every class's probability, mean over classes.

    .. math:: \frac{1}{C} \sum_{j=1}^C \sum_{m=1}^M \frac{|B_{m,j}|}{N} \,
        |freq(B_{m,j}) - conf(B_{m,j})|

    [hong2021] Eq. (29) as [kull2019] defines it; lower is better, in [0, 2/C]. The bin
    :math:`B_{m,j}` holds **all** samples with :math:`p_{ij}` in
    :math:`((m-1)/M, m/M]`, freq is the share of them whose label is j and conf their
    mean :math:`p_{ij}`. (The paper omits 1/N and takes the samples of class j alone;
    its numbers are of this.)

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        num_bins: :math:`M`.
        binning: ``"equal_width"`` as above, or ``"equal_mass"``: for each class, edges
            at the quantiles of its probability.
        sample_weights: What each sample counts, shape (N,); all the same by default.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2]])
        >>> labels = torch.tensor([0, 0, 0, 1])
        >>> error = classwise_calibration_error(probs=probs, labels=labels)
        >>> round(error, 4)  # |3/4 − 0.8| for class 0, |1/4 − 0.2| for class 1
        0.05
    """
    calibration_error.check_binning(num_bins, binning)
    scores, y = check_scores(logits, labels, probs)
    w = check_weights(sample_weights, y)
    is_probs = probs is not None
    if binning == "equal_mass":
        return _equal_mass_error(scores, y, w, num_bins, is_probs)
    gaps = ClasswiseGaps(1, num_bins, scores.shape[1])
    for rows, _, p in score_chunks(scores, y, is_probs=is_probs):
        gaps.add(p, y[rows], w[None, rows])
    return gaps.errors().item()


class ClasswiseGaps:
    r"""Weighted sums of :math:`p_{ij} - [y_i = j]` by bin and class, chunk by chunk.

    Of C probabilities that sum to 1, fewer than M lie above 1/M. So the first bin's
    sums are those of whole columns, one matrix product, less the few that lie above,
    and only these few are sorted into bins.

    Args:
        num_weightings: :math:`T`, how many weightings of the samples are summed.
        num_bins: :math:`M`, of equal width.
        num_classes: :math:`C`.
    """

    def __init__(self, num_weightings: int, num_bins: int, num_classes: int) -> None:
        shape = (num_weightings, num_bins * num_classes)
        self.gaps = torch.zeros(shape, dtype=torch.float64)  # (T, M · C)
        self.weight = torch.zeros(num_weightings, dtype=torch.float64)
        self.num_bins, self.num_classes = num_bins, num_classes

    def add(self, p: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Add a few samples.

        Args:
            p: Probabilities, float32 or float64, shape (n, C).
            labels: :math:`y`, shape (n,).
            weights: What each sample counts in each weighting, shape (T, n).
        """
        p, y, w = p.cpu(), labels.cpu(), weights.cpu().double()
        edges = calibration_error.equal_width_edges(self.num_bins, p.dtype)
        first = self.gaps[:, : self.num_classes]  # (T, C)
        first += (w.to(p.dtype) @ p).double()
        sample, c, high = _above(p, edges[1])
        place = calibration_error.bin_of(high, edges) * self.num_classes + c
        own = (
            calibration_error.bin_of(p.gather(1, y[:, None])[:, 0], edges)
            * self.num_classes
            + y
        )
        # The product above has put every probability into its class's first bin. Each
        # high one is added to its own (`place`) and taken from there (`c`), and the
        # label's 1 is taken from the bin of its probability (`own`): one bincount.
        places = torch.cat([place, c, own])
        high = high.double()
        for t, w_t in enumerate(w):
            moved = w_t[sample] * high
            amounts = torch.cat([moved, -moved, -w_t])
            self.gaps[t] += torch.bincount(places, amounts, self.gaps.shape[1])
        self.weight += w.sum(dim=1)

    def errors(self) -> Tensor:
        """Return the classwise calibration error of each weighting, shape (T,)."""
        return self.gaps.abs().sum(dim=1) / self.weight / self.num_classes


def _above(p: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column and value of the probabilities above a threshold."""
    flat = np.flatnonzero((p > threshold).numpy())  # much faster than torch's nonzero
    at = torch.from_numpy(flat)
    return at // p.shape[1], at % p.shape[1], p.reshape(-1)[at]


def _equal_mass_error(
    scores: Tensor, labels: Tensor, weights: Tensor, num_bins: int, is_probs: bool
) -> float:
    """Return the error with bins at the quantiles, a block of columns at a time."""
    counted = weights > 0
    w, y = weights[counted], labels[counted]
    normaliser = None if is_probs else scores.logsumexp(dim=1, keepdim=True)
    total = 0.0
    for block in range(0, scores.shape[1], max(1, _COLUMNS // len(scores))):
        columns = slice(block, block + max(1, _COLUMNS // len(scores)))
        p = scores[:, columns]
        p = p if normaliser is None else (p - normaliser).exp()
        p = p[counted].to(torch.promote_types(p.dtype, torch.float32)).T.contiguous()
        bins = calibration_error.bin_of(
            p, calibration_error.equal_mass_edges(p, w, num_bins)
        )  # (c, N)
        c = torch.arange(block, block + len(p), device=y.device)[:, None]
        gaps = w * (p.double() - (y == c).double())
        place = bins + num_bins * (c - block)  # a class's bins one after the other
        by_bin = torch.bincount(place.flatten(), gaps.flatten())
        total += by_bin.abs().sum().item()
    return total / w.sum().item() / scores.shape[1]
