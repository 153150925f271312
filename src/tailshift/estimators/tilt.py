r"""The tilt: a target prior :math:`p_s^\gamma` with one parameter to estimate."""

import math
from typing import NamedTuple

import torch
from scipy.stats import t as student_t
from torch import Tensor

from tailshift.estimators.base import PriorEstimator
from tailshift.estimators.jackknife import jackknife_variance
from tailshift.estimators.likelihood import TINY, sum_over, total
from tailshift.estimators.posteriors import Posteriors

BOUND = 4.0  # γ is sought in [−4, 4]
GRID = 33
MAX_NEWTON = 50
TOLERANCE = 1e-10


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
    """Of one sample's score."""


class TiltEstimator(PriorEstimator):
    r"""The likeliest target prior of the form :math:`p_t \propto p_s^\gamma`.

    .. math:: \max_\gamma \sum_i \log \sum_c
              \frac{p_s(c)^\gamma}{m_c \sum_k p_s(k)^\gamma}\, p(c|x_i)

    With one parameter for all classes it has next to no variance where EM on a hundred
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

    def _estimate(self, samples: Posteriors) -> Tensor:
        m = self._denominators(None)
        gammas = torch.linspace(-BOUND, BOUND, GRID, dtype=torch.float64)
        weights = tilted(self.source_prior_, gammas) / m
        start = gammas[sum_over(samples, weights, None).log_u.argmax()]
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
        """Say whether tilts differ at all: those of a uniform prior do not."""
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
            # Where the likelihood is not concave, step uphill.
            step = slopes.first / slopes.second.abs().clamp_min(1e-12)
            moved = (gamma + step.clamp(-0.5, 0.5)).clamp(-BOUND, BOUND)
            change, gamma = (moved - gamma).abs().max(), moved
            if change < TOLERANCE:
                return gamma, num_iter, True
        return gamma, MAX_NEWTON, bool(change < 1e-4)

    def _slopes(
        self, samples: Posteriors, m: Tensor, gamma: Tensor, weights: Tensor | None
    ) -> Slopes:
        log_p_s = self.source_prior_.log()[:, None]  # (C, 1)
        q = tilted(self.source_prior_, gamma)  # (C, B)
        w = q / m
        n = total(samples, weights)
        sums = torch.zeros(3, len(gamma), dtype=torch.float64)
        start = 0
        for p in samples:
            v = 1.0 if weights is None else weights[start : start + len(p)].double()
            u = (p @ w).clamp_min(TINY)  # (rows, B)
            z = (p @ (w * log_p_s)) / u  # mean of log p_s under the new posterior
            square = (p @ (w * log_p_s**2)) / u
            sums += torch.stack([(v * t).sum(dim=0) for t in (z, square, z * z)])
            start += len(p)
        z, square, z_square = sums / n
        mean = (q * log_p_s).sum(dim=0)
        spread = (q * log_p_s**2).sum(dim=0) - mean**2
        second = (square - z_square) - spread
        return Slopes(z - mean, second, z_square - z * z)

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
        if not self._is_identified():
            return math.inf
        gamma = torch.tensor([self._plain_gamma], dtype=torch.float64)
        slopes = self._slopes(self._samples, self._denominators(None), gamma, None)
        of_target = slopes.variance.item() / slopes.second.item() ** 2
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
        return float(student_t.ppf(0.975, freedom)) * math.sqrt(variance)
