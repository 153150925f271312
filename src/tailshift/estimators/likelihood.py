r"""The likelihood of unlabelled samples under a target prior, and its EM steps.

With calibrated posteriors :math:`p(c|x)` and their mean m on source data, label shift
means

.. math:: \frac{p_t(x)}{p_s(x)} = u(x) = \sum_c \frac{q_c}{m_c}\, p(c|x).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.estimators.acceleration import Solution, Step, squarem
from tailshift.estimators.posteriors import Posteriors

TINY = 1e-300


@dataclass(frozen=True)
class Sums:
    """What one pass over the samples gives, for B columns of class weights."""

    log_u: Tensor
    """Σ_i v_i log u_i, shape (B,)."""
    per_class: Tensor
    """Σ_i v_i p(c|x_i) / u_i, shape (C, B)."""


def sum_over(
    samples: Posteriors, class_weights: Tensor, weights: Tensor | None
) -> Sums:
    """Pass over all samples once.

    Args:
        samples: Posteriors of N samples.
        class_weights: q / m, shape (C, B).
        weights: v, how much each sample counts, shape (N, B); 1 where not given.
    """
    log_u = torch.zeros(class_weights.shape[1], dtype=torch.float64)
    per_class = torch.zeros_like(class_weights)
    start = 0
    for p in samples:
        u = (p @ class_weights).clamp_min_(TINY)  # (rows, B)
        if weights is None:
            log_u += u.log().sum(dim=0)
            per_class += p.T @ u.reciprocal_()
        else:
            v = weights[start : start + len(p)].double()
            log_u += (v * u.log()).sum(dim=0)
            per_class += p.T @ (v / u)
        start += len(p)
    return Sums(log_u, per_class)


def total(samples: Posteriors, weights: Tensor | None) -> Tensor:
    """Return how much all samples count together: N, or a sum a column."""
    if weights is None:
        return torch.tensor(float(samples.num_samples), dtype=torch.float64)
    return weights.sum(dim=0, dtype=torch.float64)


def normalised(shares: Tensor) -> Tensor:
    """Return columns (C, B) that sum to 1."""
    return shares / shares.sum(dim=0)


def maximise(
    samples: Posteriors,
    denominator: Tensor,
    *,
    start: Tensor,
    weights: Tensor | None = None,
    pseudo_counts: Tensor | None = None,
    tolerance: float = 1e-8,
    max_iter: int = 10_000,
) -> Solution:
    r"""Maximise :math:`\sum_i v_i \log u(x_i) + \sum_c a_c \log q_c` over the simplex.

    .. math:: q_c \leftarrow \frac{\sum_i v_i\, q_c\, p(c|x_i) / (m_c u_i) + a_c}
              {\sum_i v_i + \sum_c a_c}

    [saerens2002], with pseudo-counts :math:`a`. The objective is concave, so that the
    largest partial derivative bounds what is still to be gained: a column has converged
    when that is below ``tolerance`` a sample.

    Args:
        samples: Posteriors of N samples.
        denominator: m, shape (C, B) or (C, 1).
        start: The first q, positive, shape (C, B).
        weights: v, shape (N, B); 1 where not given.
        pseudo_counts: a, shape (C, B); 0 where not given.
        tolerance: Bound on the log-likelihood left, a sample.
        max_iter: Most passes over the samples.
    """
    n = total(samples, weights).expand(start.shape[1])
    a = torch.zeros_like(start) if pseudo_counts is None else pseudo_counts
    m = denominator.expand_as(start)

    def step(x: Tensor, active: Tensor) -> Step:
        q, added = normalised(x), a[:, active]
        v = None if weights is None else weights[:, active]
        sums = sum_over(samples, q / m[:, active], v)
        gain = sums.per_class / m[:, active]  # slope of the log-likelihood in q
        mass = n[active] + added.sum(dim=0)
        slope = gain + added / q.clamp_min(TINY)
        objective = sums.log_u + torch.xlogy(added, q).sum(dim=0)
        error = (slope / mass).amax(dim=0) - 1
        return Step((q * gain + added) / mass, objective, error)

    found = squarem(step, start, tolerance=tolerance, max_iter=max_iter)
    return found._replace(x=normalised(found.x))
