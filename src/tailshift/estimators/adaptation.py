"""Adapting to unlabelled data in one call, and only if a test sees a shift."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor, check_logits
from tailshift.compensation import post_compensate
from tailshift.estimators.map_em import MAPEstimator
from tailshift.predictions import Predictions
from tailshift.priors import VectorLike, as_prior, from_counts

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


WIDEST = math.log(1000)
"""An estimate must tell the ratio of two classes' shares to within this factor."""


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What unlabelled data say about the target prior, and whether to follow it.

    Attributes:
        target_prior: The prior to answer for, shape (C,): the estimate, or the source
            prior if the data do not support one.
        estimated_prior: The estimate in either case, shape (C,).
        interval: Its 95 % bootstrap interval, shape (2, C), if requested.
        gamma: The likeliest tilt: 1 source, 0 uniform, −1 reversed.
        gamma_interval: Its 95 % interval.
        p_value: The p-value of the test for any shift.
        is_adapted: Whether ``target_prior`` is the estimate.
        reason: Why, in a sentence.
    """

    target_prior: Tensor
    estimated_prior: Tensor
    interval: Tensor | None
    gamma: float
    gamma_interval: tuple[float, float]
    p_value: float
    is_adapted: bool
    reason: str


def adapt(
    held_out: Predictions,
    unlabelled_logits: ArrayLike,
    *,
    estimator: MAPEstimator | None = None,
    level: float = 0.05,
    with_interval: bool = False,
    announce: Callable[[str], None] = lambda phase: None,
) -> Adaptation:
    """Estimate the target prior, or keep the source prior if that is safer.

    The estimate is followed if a permutation test finds a shift at ``level``, if the
    estimate explains samples left out of it better than the source prior does, and if
    the tilt is known well enough: head against tail within a factor of a thousand.

    Args:
        held_out: Labelled source data, with ``source_counts`` and ``trained_prior``
            if they are known.
        unlabelled_logits: Logits of the target, shape (N, C), from the same model.
        estimator: By default :class:`MAPEstimator` with the priors of ``held_out``.
        level: Largest p-value at which a shift counts as found.
        with_interval: Also compute the bootstrap interval.
        announce: Told what is done next; thousands of classes take a minute.

    Example:
        >>> import torch
        >>> logits = torch.randn(3000, 3).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> held_out = Predictions(logits[:1000], labels[:1000])
        >>> adapt(held_out, logits[1000:]).is_adapted
        False
        >>> adapt(held_out, logits[1000:][labels[1000:] > 0][:500]).reason
        'a shift is seen in 500 samples (p = 0.002): the estimated prior is used.'
    """
    f = check_logits(as_tensor(unlabelled_logits, "unlabelled_logits").cpu())
    estimator = default_estimator(held_out) if estimator is None else estimator
    announce(f"calibrating on {len(held_out.labels):,} held-out samples")
    estimator.fit(held_out.logits, held_out.labels)
    announce(f"estimating {f.shape[1]:,} shares from {len(f):,} samples")
    q = estimator.estimate(f)
    announce("testing for a shift")
    p_value = _test(estimator, held_out.logits, f)
    announce("computing the interval of the tilt")
    low, high = estimator.gamma_interval_
    if with_interval:
        announce("computing the intervals of the shares")
    log_p_s = estimator.source_prior_.log()
    width = (high - low) * float(log_p_s.max() - log_p_s.min())
    is_adapted, reason = _judge(p_value, level, estimator.choice_.gain, width, len(f))
    return Adaptation(
        target_prior=q if is_adapted else estimator.source_prior_,
        estimated_prior=q,
        interval=estimator.interval_ if with_interval else None,
        gamma=estimator.gamma_,
        gamma_interval=estimator.gamma_interval_,
        p_value=p_value,
        is_adapted=is_adapted,
        reason=reason,
    )


def default_estimator(held_out: Predictions) -> MAPEstimator:
    """Return the estimator of :func:`adapt`, with the priors that are known."""
    counts = held_out.source_counts
    source = None if counts is None else from_counts(counts)
    return MAPEstimator(trained_prior=held_out.trained_prior, source_prior=source)


def _test(estimator: MAPEstimator, held_out: Tensor, unlabelled: Tensor) -> float:
    # Not calibrated: the calibrator has seen the held-out samples and no other.
    p_s = estimator.source_prior_
    settings = {"trained_prior": estimator.trained_prior_, "target_prior": p_s}
    generator = torch.Generator().manual_seed(0)
    parts = [
        post_compensate(_some(f, generator).float(), **settings)
        for f in (held_out, unlabelled)
    ]
    return _compared(parts, p_s, NUM_PERMUTATIONS, generator).p_value


def _judge(
    p_value: float, level: float, gain: float, width: float, num_samples: int
) -> tuple[bool, str]:
    samples = f"{num_samples} sample{'s' if num_samples > 1 else ''}"
    p = f"p = {p_value:.3f}" if p_value < 0.095 else f"p = {p_value:.2f}"
    if p_value > level:
        return False, f"no shift is seen in {samples} ({p}): the source prior is kept."
    if not gain > 0 or math.isnan(gain):
        return False, (
            f"a shift is seen in {samples} ({p}), but no estimate explains it better "
            "than the source prior on samples left out: the source prior is kept."
        )
    if not width < WIDEST:
        factor = f"{math.exp(min(width, 99)):.0g}"
        return False, (
            f"a shift is seen in {samples} ({p}), but too little is known to say how "
            f"far it goes (head against tail to a factor of {factor}): the source "
            "prior is kept."
        )
    return True, f"a shift is seen in {samples} ({p}): the estimated prior is used."
