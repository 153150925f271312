r"""Shrinkage of many sites' priors towards what their siblings have in common.

The sites form a tree. Each node's mix is drawn around its parent's, and the mix of the
root around the source prior:

.. math:: \theta_{site} \sim \mathrm{Dir}(A\, \theta_{parent}), \quad
          n_{site} \sim \mathrm{Mult}(\theta_{site}).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ROOT, ABOVE_ROOT = 0, -1  # the row of the root, and its parent
WEAKEST, STRONGEST = 0.1, 1e6
NUM_STRENGTHS = 15  # two a decade
GOLDEN = (math.sqrt(5) - 1) / 2
NUM_SECTIONS = 10  # each takes the strength to within 0.618 of what it was
NUM_WEIGHT_SECTIONS = 16  # of the weight of the parent: to within 0.0005
NUM_HALVINGS = 30
MOST_SWEEPS = 10
SETTLED = 0.02  # relative change of a strength
KNOWN = 1e12  # pseudo-counts of a prior that is not in doubt


def log_dirichlet_multinomial(counts: Tensor, pseudo_counts: Tensor) -> Tensor:
    r"""Return the log-likelihood of counts whose shares are Dirichlet, shape (K,).

    .. math:: \log \frac{\Gamma(a_\cdot)}{\Gamma(a_\cdot + n_\cdot)}
              \prod_c \frac{\Gamma(a_c + n_c)}{\Gamma(a_c)}

    The multinomial coefficient is left out: it does not depend on a.

    Args:
        counts: n, not negative, whole or not, shape (K, C).
        pseudo_counts: a, positive, shape (K, C).

    Example:
        >>> n, a = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 1.0]])
        >>> log_dirichlet_multinomial(n, a).exp()  # 1/2 · 1/3
        tensor([0.1667])
    """
    n, a = counts, pseudo_counts
    totals = torch.lgamma(a.sum(dim=1)) - torch.lgamma(a.sum(dim=1) + n.sum(dim=1))
    return totals + (torch.lgamma(a + n) - torch.lgamma(a)).sum(dim=1)


def worth_to_parent(counts: Tensor, strength: float | Tensor) -> Tensor:
    r"""Return how many draws from the parent's own mix each child's counts are worth.

    .. math:: \tilde n = n\, \frac{1 + A}{n_\cdot + A}

    Shares of n samples vary around the parent's by :math:`(n_\cdot + A) / (1 + A)` as
    much as those of draws from it: a child is worth at most 1 + A of them.

    Args:
        counts: n, shape (K, C).
        strength: A.

    Example:
        >>> worth_to_parent(torch.tensor([[2.0, 2.0]]), strength=1.0)
        tensor([[0.8000, 0.8000]])
    """
    A = strength
    return counts * (1 + A) / (counts.sum(dim=1, keepdim=True) + A)


def siblings_likelihood(counts: Tensor, strength: float, beyond: Tensor) -> float:
    r"""Return the log-likelihood of each child's counts, given its siblings'.

    Without child k the parent's mix is Dirichlet with pseudo-counts b, M in all, and
    then that of the child has the mean b/M and as many as

    .. math:: A' = \frac{A M}{1 + A + M},

    less than A because the parent's mix is in doubt too. With the child itself in b,
    few children would seem more alike than they are.

    Args:
        counts: n, shape (K, C).
        strength: A.
        beyond: Pseudo-counts of the parent without its children, positive, shape (C,).
    """
    a = _from_siblings(counts, strength, beyond)
    return float(log_dirichlet_multinomial(counts, a).sum())


def _from_siblings(counts: Tensor, strength: float, beyond: Tensor) -> Tensor:
    """Return the pseudo-counts of each child from its siblings' counts, (K, C)."""
    worth = worth_to_parent(counts, strength)  # (K, C)
    b = (beyond + worth.sum(dim=0) - worth).maximum(beyond)  # rounding
    return _carried(b, strength)


def _carried(pseudo_counts: Tensor, strength: float) -> Tensor:
    """Return the pseudo-counts of a child from those of its parent, (…, C)."""
    M = pseudo_counts.sum(dim=-1, keepdim=True)
    return pseudo_counts * strength / (1 + strength + M)


def likeliest_strength(counts: Tensor, beyond: Tensor) -> float:
    """Return the strength with the largest :func:`siblings_likelihood`.

    It is sought on a grid from 0.1 to a million, and by golden section around the best
    there. If several are as good, the largest is taken: it trusts the parent.

    Args:
        counts: n, shape (K, C).
        beyond: Pseudo-counts of the parent without its children, positive, shape (C,).

    Example:
        >>> even, n = torch.tensor([9.0, 9.0]), torch.tensor([[9.0, 1.0], [1.0, 9.0]])
        >>> likeliest_strength(n.double(), even) < 5
        True
    """

    def score(log_strength: float) -> float:
        return siblings_likelihood(counts, math.exp(log_strength), beyond)

    low, high = math.log(WEAKEST), math.log(STRONGEST)
    step = (high - low) / (NUM_STRENGTHS - 1)
    grid = [low + i * step for i in range(NUM_STRENGTHS)]
    scores = [round(score(x), 9) for x in grid]
    best = max(range(NUM_STRENGTHS), key=lambda i: (scores[i], i))
    if best in (0, NUM_STRENGTHS - 1):
        return math.exp(grid[best])
    return math.exp(_golden(score, grid[best - 1], grid[best + 1]))


def excess_spread(counts: Tensor, strength: float, beyond: Tensor) -> float:
    r"""Return by how much children are further from their siblings than A lets expect.

    .. math:: \frac{1}{K} \sum_k \frac{\lVert n_k / N_k - m_k \rVert^2}
              {(1 - \lVert m_k \rVert^2)\,(\rho_k + (1 - \rho_k) / N_k)} - 1,
              \quad \rho_k = \frac{1}{1 + A'_k}

    with the mean :math:`m_k` and the pseudo-counts :math:`A'_k` that siblings give to a
    child (:func:`siblings_likelihood`), and :math:`N_k = n_{k \cdot}`. It grows with A.

    Args:
        counts: n, shape (K, C).
        strength: A.
        beyond: Pseudo-counts of the parent without its children, positive, shape (C,).
    """
    n = counts[counts.sum(dim=1) > 0]
    a, N = _from_siblings(n, strength, beyond), n.sum(dim=1)
    m = a / a.sum(dim=1, keepdim=True)
    rho = 1 / (1 + a.sum(dim=1))
    expected = (1 - m.square().sum(dim=1)) * (rho + (1 - rho) / N)
    found = (n / N[:, None] - m).square().sum(dim=1)
    return float((found / expected).mean()) - 1


def fitting_strength(counts: Tensor, beyond: Tensor) -> float:
    """Return the strength without :func:`excess_spread`, for counts that are estimates.

    Estimates from unlabelled samples give a little to many classes where counts are
    whole, and to a likelihood such sites look alike. Their mean squared distance is
    less misled. If even the strongest lets expect more, that is taken.

    Args:
        counts: n, shape (K, C).
        beyond: Pseudo-counts of the parent without its children, positive, shape (C,).

    Example:
        >>> even, n = torch.tensor([9.0, 9.0]), torch.tensor([[9.0, 1.0], [1.0, 9.0]])
        >>> fitting_strength(n.double(), even) < 5
        True
    """
    low, high = math.log(WEAKEST), math.log(STRONGEST)
    if not counts.any() or excess_spread(counts, STRONGEST, beyond) <= 0:
        return STRONGEST
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        if excess_spread(counts, math.exp(middle), beyond) > 0:
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)


def expected_distance(mix: Tensor, pseudo_counts: Tensor) -> float:
    r"""Return the L1 distance that a mix is expected to have from a Dirichlet's.

    .. math:: \sum_c E|q_c - \theta_c| = \sum_c 2 \left(q_c I_{q_c}(a_c, b_c)
              - \mu_c I_{q_c}(a_c + 1, b_c)\right) + \mu_c - q_c

    with :math:`\theta_c \sim \mathrm{Beta}(a_c, b_c)`, :math:`b_c = a_\cdot - a_c`,
    the mean :math:`\mu = a / a_\cdot` and the regularised incomplete beta function I.

    Args:
        mix: q, shape (C,).
        pseudo_counts: a, positive, shape (C,).

    Example:
        >>> even = torch.tensor([0.5, 0.5]).double()
        >>> expected_distance(even, 2 * even)  # θ uniform in [0, 1]: twice 1/4
        0.5
    """
    from scipy.special import betainc  # slow to import, and seldom needed

    q, a = mix.numpy(), pseudo_counts.numpy()
    b, mu = a.sum() - a, a / a.sum()
    below = q * betainc(a, b, q) - mu * betainc(a + 1, b, q)
    return float((2 * below + mu - q).sum())


def nearest_mix(counts: Tensor, pseudo_counts: Tensor) -> Tensor:
    r"""Return the mix between a site's own and its parent's that is expected nearest.

    .. math:: \min_{t \in [0, 1]} E \lVert t\, q_{parent} + (1 - t)\, n / n_\cdot
              - \theta \rVert_1, \quad \theta \sim \mathrm{Dir}(a + n)

    The posterior mean is that of :math:`t = a_\cdot / (a_\cdot + n_\cdot)`, and best in
    squares. Where sites have little in common and classes are many, it spreads over
    classes that a site does not have, and t is smaller.

    Args:
        counts: n, float64, shape (C,).
        pseudo_counts: :math:`a = A\, q_{parent}`, positive, shape (C,).

    Example:
        >>> n, a = torch.tensor([8.0, 0.0, 0.0]), torch.tensor([0.1, 0.1, 0.1])
        >>> nearest_mix(n.double(), a.double())[0] > (n + a)[0] / (n + a).sum()
        tensor(True)
    """
    if not counts.any():
        return pseudo_counts / pseudo_counts.sum()

    def between(u: float) -> Tensor:  # the posterior mean at u = 1/2
        mix = u * pseudo_counts + (1 - u) * counts
        return mix / mix.sum()

    def score(u: float) -> float:
        return -expected_distance(between(u), pseudo_counts + counts)

    return between(_golden(score, 0.0, 1.0, NUM_WEIGHT_SECTIONS))


def _golden(
    score: Callable[[float], float],
    low: float,
    high: float,
    num_sections: int = NUM_SECTIONS,
) -> float:
    """Return where a function of one maximum has it, between two ends."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = score(left), score(right)
    for _ in range(num_sections):
        if at_left > at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = score(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = score(right)
    return (low + high) / 2


class Shrunk(NamedTuple):
    """Priors of a tree of sites."""

    means: Tensor
    """Posterior mean of each site's mix, shape (S, C)."""
    totals: Tensor
    """Counts of each site and what those below it are worth, shape (S, C)."""
    strengths: dict[int, float]
    """How closely its children follow a parent, by its row; −1 is the source prior."""


def shrink(
    own: Tensor,
    parents: Sequence[int],
    source_prior: Tensor,
    are_estimates: Sequence[bool] | None = None,
) -> Shrunk:
    r"""Return the mix of each site, shrunk to its parent's by how much is known.

    .. math:: q_{site} = \frac{A\, q_{parent} + \tilde n_{site}}
                              {A + \tilde n_{site \cdot}}

    where :math:`\tilde n` are the site's own counts and what its children's are worth.
    Each parent has its strength A: the likeliest (:func:`likeliest_strength`), or where
    a site below it is an estimate, that which fits their spread
    (:func:`fitting_strength`).

    Args:
        own: Counts of each site, whole or not, float64, shape (S, C).
        parents: The row of each site's parent; row 0 is the root, whose parent is −1.
        source_prior: :math:`p_s`, positive, shape (C,).
        are_estimates: Whether each site's counts were estimated without labels; by
            default none were.

    Example:
        >>> own = torch.tensor([[0.0, 0.0], [8.0, 2.0], [9.0, 1.0], [0.0, 4.0]])
        >>> even = torch.tensor([0.5, 0.5]).double()
        >>> shrink(own.double(), [-1, 0, 0, 0], even).means[:, 0].round(decimals=2)
        tensor([0.5000, 0.7700, 0.8600, 0.1100], dtype=torch.float64)
    """
    known = [False] * len(own) if are_estimates is None else are_estimates
    return _Tree(own, parents, source_prior, known).shrunk()


class _Tree:
    """Sites with their children; strengths are improved in sweeps."""

    def __init__(
        self,
        own: Tensor,
        parents: Sequence[int],
        source_prior: Tensor,
        are_estimates: Sequence[bool],
    ) -> None:
        self.own, self.parents, self.source_prior = own, parents, source_prior
        self.children: dict[int, list[int]] = {}
        for row, parent in enumerate(parents):
            self.children.setdefault(parent, []).append(row)
        self.order = [ROOT]  # from the root down
        for row in self.order:
            self.order += self.children.get(row, [])
        self.from_estimates = {  # parents of a site that is or rests on an estimate
            above
            for row, is_estimate in enumerate(are_estimates)
            if is_estimate
            for above in self._above(row)
        }
        start = float(len(source_prior))
        self.strengths = dict.fromkeys(self.children, start)

    def shrunk(self) -> Shrunk:
        for _ in range(MOST_SWEEPS):
            before = dict(self.strengths)
            self.totals = self._totals()
            for parent, rows in self.children.items():
                is_soft = parent in self.from_estimates
                find = fitting_strength if is_soft else likeliest_strength
                self.strengths[parent] = find(self.totals[rows], self._beyond(parent))
            changes = [abs(math.log(self.strengths[p] / before[p])) for p in before]
            if max(changes) < SETTLED:
                break
        self.totals = self._totals()
        return Shrunk(self._means(), self.totals, self.strengths)

    def _above(self, row: int) -> list[int]:
        """Return the ancestors of a site, to that of the root."""
        above = []
        while row != ABOVE_ROOT:
            row = self.parents[row]
            above.append(row)
        return above

    def _totals(self) -> Tensor:
        """Return own counts and what the children's are worth, (S, C)."""
        totals = self.own.clone()
        for row in reversed(self.order):
            if row in self.children:
                below = totals[self.children[row]]
                totals[row] += worth_to_parent(below, self.strengths[row]).sum(dim=0)
        return totals

    def _beyond(self, row: int) -> Tensor:
        """Return what is known of a site's mix apart from its children, (C,)."""
        if row == ABOVE_ROOT:
            return KNOWN * self.source_prior
        parent = self.parents[row]
        A, above = self.strengths[parent], self._beyond(parent)
        siblings = self.totals[[k for k in self.children[parent] if k != row]]
        above = above + worth_to_parent(siblings, A).sum(dim=0)
        return self.own[row] + _carried(above, A)

    def _means(self) -> Tensor:
        means = torch.empty_like(self.own)
        for row in self.order:
            parent = self.parents[row]
            center = self.source_prior if parent == ABOVE_ROOT else means[parent]
            pseudo_counts = self.strengths[parent] * center
            n = self.totals[row]
            means[row] = (pseudo_counts + n) / (pseudo_counts.sum() + n.sum())
        return means
