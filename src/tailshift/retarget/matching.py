"""Match a given class distribution exactly, by one weight per class (Sinkhorn)."""

import math

import torch
from torch import Tensor

MAX_SWEEPS = 2000
SWEEP_TOLERANCE = 1e-11
ANNEALING = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.005)


def matching_weights(
    p: Tensor, target_prior: Tensor, *, tolerance: float = SWEEP_TOLERANCE
) -> Tensor:
    r"""Return class weights by which the mean of the predictions is a given prior.

    .. math:: \frac{1}{N} \sum_i \frac{w_c\, p_{ic}}{\sum_k w_k\, p_{ik}} = q_c

    Sinkhorn's iteration between rows (which sum to 1) and columns (which sum to q),
    that is entropic optimal transport with cost −log p. Unlike plain re-targeting, the
    expected class counts are then exactly those of q, whether or not the model is
    calibrated.

    Args:
        p: Probabilities, shape (N, C).
        target_prior: q, shape (C,). A class without any gets the weight 0.
        tolerance: Largest absolute deviation of the mean from q.

    Returns:
        w, shape (C,).

    Example:
        >>> p = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).double()
        >>> w = matching_weights(p, torch.tensor([0.5, 0.5]))
        >>> ((w * p) / (w * p).sum(1, keepdim=True)).mean(0)
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    log_w = _log_weights(p.double().log(), target_prior.double(), tolerance)
    return (log_w - log_w.max()).exp()


def _log_weights(
    log_p: Tensor, q: Tensor, tolerance: float, start: Tensor | None = None
) -> Tensor:
    possible = q > 0
    log_q = q.log()
    impossible = possible & (log_p == -torch.inf).all(dim=0)
    if impossible.any():
        raise ValueError(
            f"Class {int(impossible.nonzero()[0])} (from 0) must occur, but its score "
            "is 0 in every row: predictions cannot match the target."
        )
    log_w = torch.where(possible, 0.0, -torch.inf) if start is None else start
    log_n = math.log(len(log_p))
    log_w = log_w.double()
    for _ in range(MAX_SWEEPS):
        rows = (log_p + log_w).log_softmax(dim=1)
        mean = rows.logsumexp(dim=0) - log_n
        gap = (mean.exp() - q).abs().max()
        if gap <= tolerance:
            break
        step = torch.where(possible, log_q - mean, 0.0)
        log_w = log_w + step
    return log_w


def matching_bias(log_p: Tensor, target_prior: Tensor) -> Tensor:
    r"""Return a bias per class by which the predicted classes match a given prior.

    The number of rows whose largest biased score is class c becomes
    :math:`N q_c`, up to the few rows in which two classes tie. The bias is the dual
    solution of optimal transport, found by annealing :func:`matching_weights`.

    Args:
        log_p: Log probabilities, up to a constant per row, shape (N, C).
        target_prior: q, shape (C,).

    Returns:
        The bias, −inf for a class that does not occur, shape (C,).
    """
    f, q = log_p.double(), target_prior.double()
    bias = torch.zeros(len(q), dtype=torch.float64)
    for temperature in ANNEALING:
        start = torch.where(q > 0, bias / temperature, -torch.inf)
        bias = temperature * _log_weights(
            (f / temperature).log_softmax(dim=1), q, 1e-6, start
        )
        bias = bias - bias[q > 0].max()
    return bias
