"""SQUAREM: a fixed point of EM in fewer steps, many columns side by side."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


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
    rests while the others go on.

    Args:
        step: F; it takes any positive x, and makes sums to 1 what must.
        start: Where each column starts, positive, shape (K, B).
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
