r"""The likelihood of held-out and unlabelled samples together.

That u = p_t / p_s of two samples is a density ratio is told by how well it tells them
apart [qin1998]: with :math:`\rho = n_t / n_s`, the profile likelihood is

.. math:: \sum_{i \in t} \log \frac{\rho u_i}{1 + \rho u_i}
          + \sum_{j \in s} \log \frac{1}{1 + \rho u_j}.

Unlike a likelihood with the mean posterior put in, it knows that the held-out data are
few: a class mix that only their noise calls for does not pay on other held-out data.
"""

import torch
from torch import Tensor

from tailshift.estimators.acceleration import Solution, Step, squarem
from tailshift.estimators.likelihood import TINY, normalised, total
from tailshift.estimators.posteriors import Posteriors


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
        weights: How much each unlabelled sample counts, (N, B); 1 where not given.
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
    for p in samples:
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
