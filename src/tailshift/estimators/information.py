"""How many labelled samples an estimate from unlabelled ones is worth."""

import torch
from torch import Tensor

SUMMED_ELEMENTS = 2**23  # of the posteriors that information is summed over
KAPPA = 1.0  # keep the information invertible, and are taken off again


def effective_samples(
    posteriors: Tensor,
    target_prior: Tensor,
    denominator: Tensor,
    held_out_counts: Tensor,
    weights: Tensor,
) -> float:
    r"""Return the number of labels that tell the prior as well as unlabelled samples.

    With responsibilities :math:`r_i \propto q\, p(\cdot|x_i) / m`, the likelihood's
    information about q, in units in which one label has 1 in every direction, is

    .. math:: J = \sum_i b_i b_i^\top, \quad b_{ic} = (r_{ic} - q_c) / \sqrt{q_c},

    and the variances of the shares add up to :math:`\sum_c q_c (J + I)^{-1}_{cc} -
    \sum_c q_c^2` for it and one pseudo-sample more. To these come those that m brings
    in, whose relative error is :math:`1/\sqrt{h_c}` with :math:`h_c` held-out samples:

    .. math:: \sum_c q_c^2 \Big(\frac{1 - 2 q_c}{h_c} + \sum_d \frac{q_d^2}{h_d}\Big).

    Those of n labels and the pseudo-sample add up to :math:`(1 - \sum_c q_c^2) / (n +
    1)`: n is what is returned, at least 0 and at most the number of samples.

    Args:
        posteriors: Calibrated, for the source prior, float64, shape (N, C).
        target_prior: q, the estimate, shape (C,).
        denominator: m, their mean on held-out data, positive, shape (C,).
        held_out_counts: h, shape (C,).
        weights: How much each sample counts, shape (N,).

    Example:
        >>> q, h, v = torch.full((2,), 0.5), torch.full((2,), 1e9), torch.ones(4)
        >>> sure, blind = torch.eye(2)[[0, 0, 1, 1]], torch.full((4, 2), 0.5)
        >>> [round(effective_samples(p, q, q, h, v), 3) for p in (sure, blind)]
        [4.0, 0.0]
    """
    N = weights.sum().item()
    # Inside the simplex: a class of estimated share 0 has no unit to measure in.
    q = (N * target_prior + KAPPA * denominator) / (N + KAPPA)
    q = q / q.sum()
    r = posteriors * (q / denominator)
    r = r / r.sum(dim=1, keepdim=True)
    b = weights[:, None].sqrt() * (r - q) / q.sqrt()  # (N, C)
    spread = 1 - q.square().sum()
    variance = (q * _inverse_diagonal(b)).sum() - q.square().sum() / KAPPA
    variance = variance + _held_out_variance(q, held_out_counts.clamp_min(1))
    return min(max((spread / variance).item() - KAPPA, 0.0), N)


def _held_out_variance(q: Tensor, h: Tensor) -> Tensor:
    """Return what the error of m adds to the variances of shares that sum to 1."""
    q2 = q.square()
    return (q2 * (1 - 2 * q) / h).sum() + q2.sum() * (q2 / h).sum()


def _inverse_diagonal(b: Tensor) -> Tensor:
    """Return the diagonal of (bᵀb + κI)⁻¹, by the smaller of bᵀb and bbᵀ, (C,)."""
    rows, columns = b.shape
    eye = KAPPA * torch.eye(min(b.shape), dtype=b.dtype)
    if rows >= columns:
        inverse: Tensor = torch.linalg.inv(b.T @ b + eye)
        return inverse.diagonal()
    solved: Tensor = torch.linalg.solve(b @ b.T + eye, b)
    return (1 - (b * solved).sum(dim=0)) / KAPPA
