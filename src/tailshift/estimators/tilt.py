r"""The tilt: a target prior :math:`p_s^\gamma` with one parameter to estimate."""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tailshift.calibration import Calibrator
from tailshift.estimators import likelihood
from tailshift.estimators.base import ESTIMATORS, PriorEstimator
from tailshift.estimators.posteriors import Posteriors

NUM_GROUPS = 10
REFIT_ELEMENTS = 2**20  # with more held-out posteriors the calibrator is sure enough
TARGET_ELEMENTS = 2**21  # of unlabelled posteriors that changes are measured on


def jackknife_variance(
    estimate: Callable[[Posteriors, Tensor], float],
    samples: Posteriors,
    held_out: Posteriors,
    labels: Tensor,
    calibrator: Calibrator | None,
) -> tuple[float, int]:
    r"""Return the variance of an estimate over held-out samples, and its freedom.

    .. math:: \frac{G-1}{G} \sum_k (\hat\gamma_{(k)} - \bar\gamma)^2

    where :math:`\hat\gamma_{(k)}` is the estimate without group k of the held-out
    samples, both for the denominator and for a calibrator fitted anew on top of the
    first.

    Args:
        estimate: Takes unlabelled posteriors and a denominator (C, 1).
        samples: Unlabelled posteriors.
        held_out: Held-out posteriors.
        labels: Held-out labels.
        calibrator: What made the posteriors; it is copied.
    """
    generator = torch.Generator().manual_seed(0)
    n = held_out.num_samples
    num_groups = min(NUM_GROUPS, n)
    if num_groups < 2:
        return 0.0, 1
    group = torch.randperm(n, generator=generator) % num_groups
    kept = group[:, None] != torch.arange(num_groups)  # (n, groups)
    target = _some(samples, generator)
    is_sure = n * held_out.num_classes > REFIT_ELEMENTS
    if calibrator is None or is_sure:
        means = held_out.mean(kept.to(torch.uint8)).clamp_min(1e-30)
        known = Posteriors.of(target)
        values = [estimate(known, m[:, None]) for m in means.T]
    else:
        values = _recalibrated(estimate, target, held_out, labels, calibrator, kept)
    spread = torch.tensor(values, dtype=torch.float64).var(correction=0)
    return (num_groups - 1) * spread.item(), num_groups - 1


def _recalibrated(
    estimate: Callable[[Posteriors, Tensor], float],
    target: Tensor,
    held_out: Posteriors,
    labels: Tensor,
    calibrator: Calibrator,
    kept: Tensor,
) -> list[float]:
    """Return the estimates without each group, the calibrator fitted anew."""
    known, values = torch.cat(list(held_out)), []
    for rows in kept.T:
        again = _calibrated_again(calibrator, known[rows], labels[rows])
        m = again(known[rows]).mean(dim=0)[:, None].clamp_min(1e-30)
        values.append(estimate(Posteriors.of(again(target)), m))
    return values


def _calibrated_again(
    calibrator: Calibrator, posteriors: Tensor, labels: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return what a calibrator fitted to posteriors and labels does to posteriors."""
    fitted = copy.deepcopy(calibrator)
    fitted.fit(posteriors.log(), labels)

    def again(p: Tensor) -> Tensor:
        logits: Tensor = fitted.transform(p.log())
        return logits.softmax(dim=1)

    return again


def _some(samples: Posteriors, generator: torch.Generator) -> Tensor:
    most = max(1, TARGET_ELEMENTS // samples.num_classes)
    if samples.num_samples <= most:
        return torch.cat(list(samples))
    order = torch.randperm(samples.num_samples, generator=generator)
    return samples.rows(order[:most])


BOUND = 4.0  # γ is sought in [−4, 4]
NUM_GAMMAS = 33
MAX_NEWTON = 50
FLAT = 1e-12  # a second derivative of the mean log-likelihood that is rounding
NEWTON_TOLERANCE = 1e-10


def tilted(source_prior: Tensor, gamma: Tensor | float) -> Tensor:
    r"""Return :math:`p_s^\gamma / \sum_c p_s(c)^\gamma`.

    γ = 1 is the source, 0 uniform, −1 the source reversed.

    Args:
        source_prior: :math:`p_s`, positive, shape (C,).
        gamma: A number, or one a column, shape (B,).

    Returns:
        Shape (C,), or (C, B).

    Example:
        >>> tilted(torch.tensor([0.8, 0.2]), -1.0)
        tensor([0.2000, 0.8000])
    """
    logs = source_prior.log()
    if isinstance(gamma, Tensor) and gamma.ndim == 1:
        return (logs[:, None] * gamma).softmax(dim=0)
    return (logs * gamma).softmax(dim=0)


class Slopes(NamedTuple):
    """Derivatives of the mean log-likelihood in γ, each (B,)."""

    first: Tensor
    second: Tensor
    variance: Tensor
    """Variance of one sample's score."""


@ESTIMATORS.register("tilt")
class TiltEstimator(PriorEstimator):
    r"""The likeliest target prior of the form :math:`p_t \propto p_s^\gamma`.

    .. math:: \max_\gamma \sum_i \log \sum_c
              \frac{p_s(c)^\gamma}{m_c \sum_k p_s(k)^\gamma}\, p(c|x_i)

    With one parameter for all classes it has next to no variance, while EM on a hundred
    classes has a great deal, but it cannot follow a target that is no tilt.

    Attributes:
        gamma_: γ, within ±4.
        gamma_interval_: 95 % interval of γ. Unlabelled samples count by the slopes of
            the likelihood, held-out ones by leaving out a tenth of them at a time, with
            the calibrator fitted anew.

    Example:
        >>> logits = torch.randn(3000, 3).mul(2) + torch.tensor([2.0, 1.0, 0.0])
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> tilt = TiltEstimator().fit(logits, labels)
        >>> source = tilt.estimate(logits)
        >>> round(tilt.gamma_, 1)
        1.0
    """

    sentence = "The likeliest target prior among the powers of the source prior."

    def _estimate(self, samples: Posteriors) -> Tensor:
        m = self._denominators(None)
        gammas = torch.linspace(-BOUND, BOUND, NUM_GAMMAS, dtype=torch.float64)
        weights = tilted(self.source_prior_, gammas) / m
        start = gammas[likelihood.sum_over(samples, weights, None).log_u.argmax()]
        if not self._is_identified():
            start = torch.ones((), dtype=torch.float64)
        gamma, num_iter, converged = self._climb(samples, m, start[None], None)
        self.gamma_ = self._plain_gamma = gamma.item()
        self._gamma_width: float | None = None
        self._report(num_iter + 1, converged)
        return tilted(self.source_prior_, self.gamma_)

    def _replicate(self, weights: Tensor, held_out_weights: Tensor) -> Tensor:
        m = self._denominators(held_out_weights)
        start = torch.full((weights.shape[1],), self.gamma_, dtype=torch.float64)
        gamma, _, _ = self._climb(self._samples, m, start, weights)
        return tilted(self.source_prior_, gamma)

    def _is_identified(self) -> bool:
        """Return whether tilts differ at all: those of a uniform prior do not."""
        log_p_s = self.source_prior_.log()
        return bool(log_p_s.max() - log_p_s.min() > 1e-6)

    def _climb(
        self, samples: Posteriors, m: Tensor, gamma: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, int, bool]:
        """Follow Newton's steps, at most half a unit each, from near the maximum."""
        if not self._is_identified():
            return gamma, 0, True
        for num_iter in range(1, MAX_NEWTON + 1):
            slopes = self._slopes(samples, m, gamma, weights)
            # If the likelihood is not concave, step uphill.
            step = slopes.first / slopes.second.abs().clamp_min(1e-12)
            moved = (gamma + step.clamp(-0.5, 0.5)).clamp(-BOUND, BOUND)
            change, gamma = (moved - gamma).abs().max(), moved
            if change < NEWTON_TOLERANCE:
                return gamma, num_iter, True
        return gamma, MAX_NEWTON, bool(change < 1e-4)

    def _slopes(
        self, samples: Posteriors, m: Tensor, gamma: Tensor, weights: Tensor | None
    ) -> Slopes:
        log_p_s = self.source_prior_.log()[:, None]  # (C, 1)
        q = tilted(self.source_prior_, gamma)  # (C, B)
        w = q / m
        n = likelihood.total(samples, weights)
        sums = torch.zeros(3, len(gamma), dtype=torch.float64)
        start = 0
        for p in samples.passing():
            v = 1.0 if weights is None else weights[start : start + len(p)].double()
            u = (p @ w).clamp_min(likelihood.TINY)  # (rows, B)
            z = (p @ (w * log_p_s)) / u  # mean of log p_s under the new posterior
            square = (p @ (w * log_p_s**2)) / u
            sums += torch.stack([(v * t).sum(dim=0) for t in (z, square, z * z)])
            start += len(p)
        z, square, z_square = sums / n
        mean = (q * log_p_s).sum(dim=0)
        spread = (q * log_p_s**2).sum(dim=0) - mean**2
        second = (square - z_square) - spread
        variance = (z_square - z * z).clamp_min(0)  # of equal samples: but rounding
        return Slopes(z - mean, second, variance)

    @property
    def gamma_interval_(self) -> tuple[float, float]:
        """95 % interval of γ; computed when it is first asked for."""
        if not hasattr(self, "_gamma_width"):
            raise AttributeError(
                f"This {type(self).__name__} has no interval of γ: call "
                "estimate(logits) of a TiltEstimator or MAPEstimator first."
            )
        if self._gamma_width is None:
            self._gamma_width = self._half_width()
        return self.gamma_ - self._gamma_width, self.gamma_ + self._gamma_width

    def _half_width(self) -> float:
        from scipy.special import stdtrit  # Student's t without all of scipy.stats

        if not self._is_identified():
            return math.inf
        gamma = torch.tensor([self._plain_gamma], dtype=torch.float64)
        slopes = self._slopes(self._samples, self._denominators(None), gamma, None)
        curvature = slopes.second.item() ** 2
        if curvature < FLAT**2:
            return math.inf  # no sample tells one tilt from another
        of_target = slopes.variance.item() / curvature
        of_target /= self._samples.num_samples
        of_held_out, dof = jackknife_variance(
            lambda samples, m: self._climb(samples, m, gamma, None)[0].item(),
            self._samples,
            self._held_out,
            self.labels_,
            self.calibrator_,
        )
        variance = of_target + of_held_out
        # Welch and Satterthwaite's degrees of freedom.
        is_sure = of_held_out <= 1e-12 * variance  # of what the held-out data say
        freedom = math.inf if is_sure else dof * (variance / of_held_out) ** 2
        return float(stdtrit(freedom, 0.975)) * math.sqrt(variance)


REACH, STEPS = 0.75, 11  # γ is sought this far on either side, on so many points
FIXED = 1e12  # pseudo-counts that leave q where it is


def joint_gamma(
    samples: Posteriors,
    held_out: Posteriors,
    source_prior: Tensor,
    denominator: Tensor,
    gamma: float,
) -> float:
    r"""Return the γ near a given one that makes both samples likeliest.

    The denominator m is free: each γ is judged with the m that suits it best. If
    held-out samples are few this errs less than γ with their mean posterior put in.

    Args:
        samples: Unlabelled posteriors.
        held_out: Held-out posteriors.
        source_prior: :math:`p_s`, shape (C,).
        denominator: The first m, shape (C, 1).
        gamma: The γ to search around.
    """
    offsets = torch.linspace(-REACH, REACH, STEPS, dtype=torch.float64)
    gammas = (gamma + offsets).clamp(-BOUND, BOUND)
    q = tilted(source_prior, gammas)  # (C, steps)
    found = likelihood.maximise_jointly(
        samples,
        held_out,
        start=q,
        denominator=denominator,
        pseudo_counts=FIXED * q,
        tolerance=1e-4,
        max_iter=200,
    )
    w = q / found.x.chunk(2)[1]
    ratio = samples.num_samples / held_out.num_samples
    values = torch.zeros(STEPS, dtype=torch.float64)
    for part, is_target in ((samples, True), (held_out, False)):
        for p in part:
            values += likelihood.joint_scores(
                p.double() @ w, ratio, is_target=is_target
            ).sum(dim=0)
    return _peak(gammas, values)


def _peak(x: Tensor, values: Tensor) -> float:
    """Return where the parabola through the best point and its neighbours peaks."""
    k = int(values.argmax())
    if k in (0, len(x) - 1):
        return x[k].item()
    left, top, right = values[k - 1 : k + 2].tolist()
    curvature = left - 2 * top + right
    step = (x[k + 1] - x[k]).item()
    return x[k].item() + (step * (left - right) / (2 * curvature) if curvature else 0.0)
