r"""The tilt: a target prior :math:`p_s^\gamma` with one parameter to estimate."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tailshift.estimators import likelihood
from tailshift.estimators.base import ESTIMATORS, PriorEstimator
from tailshift.estimators.posteriors import Posteriors
from tailshift.estimators.replicates import percentile_interval

BOUND = 4.0  # γ is sought in [−4, 4]
EXPONENT_PRECISION = 1.0  # of the normal prior of γ around the source's 1
NUM_GAMMAS = 33
MAX_NEWTON = 50
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


def exponent_log_prior(gamma: Tensor) -> Tensor:
    """Return the log density of γ, up to a constant: normal around 1, deviation 1."""
    return -EXPONENT_PRECISION * (gamma - 1).square() / 2


class Slopes(NamedTuple):
    """Derivatives of the mean log-likelihood in γ, each (B,)."""

    first: Tensor
    second: Tensor


@ESTIMATORS.register("tilt")
class TiltEstimator(PriorEstimator):
    r"""The likeliest target prior of the form :math:`p_t \propto p_s^\gamma`.

    .. math:: \max_\gamma \sum_i \log \sum_c
              \frac{p_s(c)^\gamma}{m_c \sum_k p_s(k)^\gamma}\, p(c|x_i)

    With one parameter for all classes it has little variance, while EM on a hundred
    classes has a lot, but it cannot follow a target that is no power of the source. A
    normal prior of γ around 1 decides where samples do not.

    Attributes:
        gamma_: γ, within ±4.
        gamma_interval_: 95 % interval of γ, from the same replicates as ``interval_``.

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
        m = self.denominator_[:, None]
        gammas = torch.linspace(-BOUND, BOUND, NUM_GAMMAS, dtype=torch.float64)
        weights = tilted(self.source_prior_, gammas) / m
        log_u = likelihood.sum_over(samples, weights, None).log_u
        start = gammas[(log_u + exponent_log_prior(gammas)).argmax()]
        if not self._is_identified():
            start = torch.ones((), dtype=torch.float64)
        gamma, num_iter, converged = self._climb(samples, m, start[None], None)
        self.gamma_ = gamma.item()
        self._gamma_draws: Tensor | None = None
        self._report(num_iter + 1, converged)
        return tilted(self.source_prior_, self.gamma_)

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
        n = likelihood.total(samples, weights)
        for num_iter in range(1, MAX_NEWTON + 1):
            slopes = self._slopes(samples, m, gamma, weights)
            # If the likelihood is not concave, step uphill.
            pull = (1 - gamma) * (EXPONENT_PRECISION / n)
            curvature = slopes.second.abs() + EXPONENT_PRECISION / n
            step = (slopes.first + pull) / curvature.clamp_min(1e-12)
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
        return Slopes(z - mean, second)

    @property
    def gamma_interval_(self) -> tuple[float, float]:
        """95 % interval of γ; computed when it is first asked for."""
        if not hasattr(self, "_gamma_draws"):
            raise AttributeError(
                f"This {type(self).__name__} has no interval of γ: call "
                "estimate(logits) of a TiltEstimator or MAPEstimator first."
            )
        if not self._is_identified():
            return -math.inf, math.inf
        if self._gamma_draws is None:
            self._gamma_draws = self._draw_gammas()
        low, high = percentile_interval(self._gamma_draws, torch.tensor(self.gamma_))
        return low.item(), high.item()

    def _draw_gammas(self) -> Tensor:
        """Return γ of each replicate, shape (B,)."""
        start = torch.tensor([self.gamma_], dtype=torch.float64)
        return torch.cat(
            [
                self._climb(
                    Posteriors.of(p.double()), m[:, None], start, v.double()[:, None]
                )[0]
                for part in self.replicates_
                for p, m, v in zip(part.p, part.mean, part.weights, strict=True)
            ]
        )


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
    values = exponent_log_prior(gammas)
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
