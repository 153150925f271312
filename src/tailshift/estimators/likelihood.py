r"""The likelihood of unlabelled samples under a target prior, and its EM steps.

With calibrated posteriors :math:`p(c|x)` and their mean m on source data, label shift
means

.. math:: \frac{p_t(x)}{p_s(x)} = u(x) = \sum_c \frac{q_c}{m_c}\, p(c|x).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tailshift.estimators.posteriors import Posteriors


class Step(NamedTuple):
    """One EM step from x: where it leads, and how good x was."""

    after: Tensor
    """F(x), not negative, shape (K, B)."""
    objective: Tensor
    """What EM raises, at x, shape (B,)."""
    error: Tensor
    """How far x is from the fixed point, shape (B,)."""


StepFunction: TypeAlias = Callable[[Tensor, Tensor], Step]
"""Takes x (K, B) and the numbers of its columns (B,)."""


class Solution(NamedTuple):
    """A fixed point of each column."""

    x: Tensor
    num_iter: int
    converged: bool


def squarem(
    step: StepFunction, start: Tensor, *, tolerance: float, max_iter: int
) -> Solution:
    r"""Iterate F to its fixed point, extrapolating over pairs of steps.

    With :math:`r = F(x) - x`, :math:`v = F(F(x)) - F(x) - r` and
    :math:`a = \|r\| / \|v\|`,

    .. math:: x \leftarrow F(x + 2 a r + a^2 v),

    unless that lowers the objective below that of x, when the plain second step is
    taken instead: like EM it never falls [varadhan2008]. A column that has converged
    rests while the others iterate.

    Args:
        step: F; it takes any positive x, and makes sums to 1 what must.
        start: Start of each column, positive, shape (K, B).
        tolerance: A column has converged once its error is not above this.
        max_iter: Most evaluations of F.
    """
    x = start.clone()
    active = torch.arange(x.shape[1])
    num_iter = 0
    while num_iter + 3 <= max_iter:
        x0 = x[:, active]
        first = step(x0, active)
        num_iter += 1
        x[:, active] = first.after
        going = first.error > tolerance
        if not going.any():
            return Solution(x, num_iter, True)
        active, x0, first = active[going], x0[:, going], _columns(first, going)
        second = step(first.after, active)
        leap = _extrapolate(x0, first.after, second.after)
        third = step(leap, active)
        num_iter += 2
        better = third.objective >= first.objective  # False for NaN too
        x[:, active] = torch.where(better, third.after, second.after)
    return Solution(x, num_iter, False)


def _columns(step: Step, chosen: Tensor) -> Step:
    return Step(step.after[:, chosen], step.objective[chosen], step.error[chosen])


def _extrapolate(x0: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    r, v = x1 - x0, (x2 - x1) - (x1 - x0)
    ratio = r.norm(dim=0) / v.norm(dim=0).clamp_min(1e-300)
    a = ratio.clamp(1.0, 1e4)  # a = 1 is the plain second step
    leap = x0 + 2 * a * r + a**2 * v
    return torch.where(leap > 0, leap, 0.1 * x2)  # towards 0, but not beyond


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
        weights: v, how much each sample counts, shape (N, B); 1 if not given.
    """
    log_u = torch.zeros(class_weights.shape[1], dtype=torch.float64)
    per_class = torch.zeros_like(class_weights)
    start = 0
    for p in samples.passing():
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
        weights: v, shape (N, B); 1 if not given.
        pseudo_counts: a, shape (C, B); 0 if not given.
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


def maximise_jointly(
    samples: Posteriors,
    held_out: Posteriors,
    *,
    start: Tensor,
    denominator: Tensor,
    pseudo_counts: Tensor,
    weights: Tensor | None = None,
    held_out_weights: Tensor | None = None,
    tolerance: float = 1e-7,
    max_iter: int = 3000,
) -> Solution:
    r"""Maximise the joint likelihood plus :math:`\sum_c a_c \log q_c`.

    Each step is EM's in q, and takes for m the mean posterior under what the
    likelihood makes of the source distribution, in which every sample x, of either
    kind, weighs :math:`1 / (n_s (1 + \rho u(x)))`. Neither lowers the likelihood.

    Args:
        samples: Unlabelled posteriors, N of them.
        held_out: Held-out posteriors, n of them.
        start: The first q, shape (C, B).
        denominator: The first m, shape (C, B) or (C, 1).
        pseudo_counts: a, shape (C, B).
        weights: How much each unlabelled sample counts, (N, B); 1 if not given.
        held_out_weights: The same of the held-out samples, (n, B).
        tolerance: Sum of the changes in q and m below which a column has converged.
        max_iter: Most passes over the data.

    Returns:
        q above m, shape (2C, B).
    """
    columns = start.shape[1]
    n_t = total(samples, weights).expand(columns)
    n_s = total(held_out, held_out_weights).expand(columns)

    def step(x: Tensor, active: Tensor) -> Step:
        q, m = (normalised(half) for half in x.chunk(2))
        a, w = pseudo_counts[:, active], q / m.clamp_min(TINY)
        t, s = n_t[active], n_s[active]
        gain, of_t, value_t = _pass(samples, w, _pick(weights, active), t / s, True)
        _, of_s, value_s = _pass(
            held_out, w, _pick(held_out_weights, active), t / s, False
        )
        shares = (w * gain + a) / (t + a.sum(dim=0))
        objective = value_t + value_s + torch.xlogy(a, q).sum(dim=0)
        after = torch.cat([normalised(shares), normalised(of_t + of_s)])
        error = (after - torch.cat([q, m])).abs().sum(dim=0)
        return Step(after, objective, error)

    x = torch.cat([start, denominator.expand_as(start)])
    found = squarem(step, x, tolerance=tolerance, max_iter=max_iter)
    return found._replace(x=torch.cat([normalised(h) for h in found.x.chunk(2)]))


def joint_scores(u: Tensor, ratio: float, *, is_target: bool) -> Tensor:
    """Return each sample's term of the likelihood from its density ratio u."""
    log_ratio = torch.log1p(ratio * u)
    return (ratio * u).clamp_min(TINY).log() - log_ratio if is_target else -log_ratio


def _pick(weights: Tensor | None, active: Tensor) -> Tensor | None:
    return None if weights is None else weights[:, active]


def _pass(
    samples: Posteriors,
    w: Tensor,
    weights: Tensor | None,
    ratio: Tensor,
    is_target: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ v p/u and Σ v p/(1 + ρu), both (C, B), and the log-likelihood (B,)."""
    gain, mean = torch.zeros_like(w), torch.zeros_like(w)
    value = torch.zeros(w.shape[1], dtype=torch.float64)
    start = 0
    for p in samples.passing():
        # Sums are float64; inside a block, the dtype of the posteriors will do.
        u = (p @ w.to(p.dtype)).clamp_min_(torch.finfo(p.dtype).tiny)  # (rows, B)
        scaled = ratio.to(p.dtype) * u
        inverse = (1 + scaled).reciprocal_()
        terms = (scaled * inverse).log_() if is_target else inverse.log()
        gained = u.reciprocal_()
        if weights is not None:
            v = weights[start : start + len(p)].to(p.dtype)
            inverse, terms, gained = v * inverse, v * terms, v * gained
        mean += p.T @ inverse
        value += terms.sum(dim=0)
        if is_target:
            gain += p.T @ gained
        start += len(p)
    return gain, mean, value
