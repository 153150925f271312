"""A permutation test for any shift between two sets of logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.checks import check_logits
from tailshift.priors import VectorLike, as_prior

NUM_PERMUTATIONS = 999
MOST_ELEMENTS = 2**22  # of posteriors looked at
AT_ONCE = 100  # permutations
ROUNDING = 1e-12  # a class whose posteriors differ by less has the same for all samples


@dataclass(frozen=True)
class ShiftTest:
    """What the test found.

    Attributes:
        p_value: How often samples of one distribution differ as much, in (0, 1].
        tilt_p_value: The same, by the mean log source prior alone.
        class_p_value: The same, by the mean posterior of each class alone.
    """

    p_value: float
    tilt_p_value: float
    class_p_value: float


def shift_test(
    held_out: Tensor,
    unlabelled: Tensor,
    source_prior: VectorLike,
    *,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
) -> ShiftTest:
    r"""Test whether two sets of logits come from one distribution.

    Two statistics compare mean posteriors :math:`\bar p`, black-box [rabanser2019]: the
    difference in :math:`\sum_c \bar p_c \log p_s(c)`, which sees tilts, and the squared
    difference in each :math:`\bar p_c` over its variance, summed, which sees the rest.
    Both are compared with what exchanging samples between the sets gives, and the
    smaller of the two p-values is judged in the same way, so that the p-value holds for
    every number of samples and classes.

    Args:
        held_out: Logits of source data that nothing was fitted to, shape (n, C).
        unlabelled: Logits of target data, shape (N, C), made by the same model.
        source_prior: :math:`p_s`, positive, shape (C,).
        num_permutations: Number of exchanges; the p-value is at least 1 over 1 more.
        seed: Seed for the exchanges, and for the subset of samples if they are many.

    Example:
        >>> a, b = torch.randn(100, 3), torch.randn(300, 3)
        >>> shift_test(a, b, [0.5, 0.3, 0.2]).p_value > 0.05
        True
        >>> shift_test(a, b + torch.tensor([0.0, 0.0, 1.0]), [0.5, 0.3, 0.2]).p_value
        0.001
    """
    generator = torch.Generator().manual_seed(seed)
    parts = [_some(check_logits(f), generator) for f in (held_out, unlabelled)]
    return _compared(parts, source_prior, num_permutations, generator)


def _compared(
    parts: list[Tensor],
    source_prior: VectorLike,
    num_permutations: int,
    generator: torch.Generator,
) -> ShiftTest:
    p = torch.cat(parts).double().softmax(dim=1)  # (n + N, C)
    prior = as_prior(source_prior, num_classes=p.shape[1], positive=True)
    low, high = p.amin(dim=0), p.amax(dim=0)
    is_constant = high - low <= ROUNDING * high  # what is left would be rounding alone
    # Centred, a sum over either set is a difference of both.
    p = p.sub_(p.mean(dim=0)).masked_fill_(is_constant, 0.0)
    n = min(len(part) for part in parts)
    found = p[: len(parts[0])].sum(dim=0)[None]
    sums = torch.cat([found, _exchanged(p, n, num_permutations, generator)])
    variance = p.square().mean(dim=0)
    by_class = (sums.square() / variance.clamp_min(1e-30)).sum(dim=1)
    by_tilt = (sums @ prior.log()).abs()
    p_class, p_tilt = _p_values(by_class), _p_values(by_tilt)
    joint = _p_values(-torch.minimum(p_class, p_tilt))
    return ShiftTest(joint[0].item(), p_tilt[0].item(), p_class[0].item())


def _some(f: Tensor, generator: torch.Generator) -> Tensor:
    most = max(2, MOST_ELEMENTS // f.shape[1])
    if len(f) <= most:
        return f
    return f[torch.randperm(len(f), generator=generator)[:most]]


def _exchanged(
    p: Tensor, n: int, num_permutations: int, generator: torch.Generator
) -> Tensor:
    """Return the sums (permutations, C) over n samples drawn from all."""
    sums = []
    for start in range(0, num_permutations, AT_ONCE):
        chosen = torch.zeros(min(AT_ONCE, num_permutations - start), len(p))
        for row in chosen:
            row[torch.randperm(len(p), generator=generator)[:n]] = 1.0
        sums.append(chosen.to(p.dtype) @ p)
    return torch.cat(sums)


def _p_values(statistics: Tensor) -> Tensor:
    """Return for each statistic the share of all that are at least as large."""
    tolerance = 1e-9 * statistics.abs().max().clamp_min(1)  # for equal ones
    below = torch.searchsorted(statistics.sort().values, statistics - tolerance)
    return (len(statistics) - below).double() / len(statistics)
