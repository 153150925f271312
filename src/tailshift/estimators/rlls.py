"""RLLS: regularised learning under label shift."""

import math

import torch
from torch import Tensor

from tailshift.estimators.base import CalibratorLike
from tailshift.estimators.confusion import ConfusionEstimator
from tailshift.estimators.simplex import project_to_simplex
from tailshift.priors import VectorLike

CONFIDENCE = 0.05
MAX_BISECTIONS = 200


class RLLSEstimator(ConfusionEstimator):
    r"""Importance weights :math:`1 + \theta`, shrunk to 1 [azizzadenesheli2019].

    .. math:: \min_\theta \|J \theta - (\mu - J \mathbf 1)\| + \Delta \|\theta\|

    with the joint confusion matrix J and the shares :math:`\mu` of predicted classes;
    :math:`\Delta = 3\beta\,(2 l / 3n + \sqrt{2 l / n})` with :math:`l = \log(2C/0.05)`
    bounds, up to :math:`\beta`, the error of J from n held-out samples. The prior is
    :math:`p_s (1 + \theta)`, projected to the simplex.

    Args:
        trained_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: As above.
        calibrator: As above.
        is_soft: Use posteriors instead of the predicted class.
        beta: :math:`\beta`; the bound itself is far too wide to be used.

    Example:
        >>> logits = torch.randn(2000, 2).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> rlls = RLLSEstimator().fit(logits, labels)
        >>> rlls.estimate(logits[labels == 1]).round(decimals=1)
        tensor([0., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        *,
        trained_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "bcts",
        is_soft: bool = True,
        beta: float = 0.01,
    ) -> None:
        super().__init__(
            trained_prior=trained_prior,
            source_prior=source_prior,
            calibrator=calibrator,
            is_soft=is_soft,
        )
        self.beta = beta

    def _solve(self, joint: Tensor, mu: Tensor) -> tuple[Tensor, int, bool]:
        n, num_classes = self._held_out.num_samples, len(mu)
        log_term = math.log(2 * num_classes / CONFIDENCE)
        delta = 2 * log_term / (3 * n) + math.sqrt(2 * log_term / n)
        theta, num_iter = least_norms(
            joint, mu - joint.sum(dim=1), 3 * self.beta * delta
        )
        return project_to_simplex(self.source_prior_ * (1 + theta)), num_iter, True


def least_norms(a: Tensor, b: Tensor, delta: float) -> tuple[Tensor, int]:
    r"""Return the minimum of :math:`\|A\theta - b\| + \Delta\|\theta\|`.

    It is a ridge regression whose weight r solves :math:`r \|\theta\| = \Delta \|A
    \theta - b\|`, found by bisection on log r from one singular value decomposition.
    """
    u, s, v = torch.linalg.svd(a)
    c = u.T @ b
    outside = b.square().sum() - c.square().sum()

    def solve(r: float) -> tuple[Tensor, float]:
        x = s * c / (s.square() + r)
        residual = (s * x - c).square().sum() + outside.clamp_min(0)
        return x, (r * x.norm() - delta * residual.sqrt()).item()

    low, high = -60.0, 60.0  # log r; θ is 0 at the upper end
    num_iter = 0
    while high - low > 1e-10 and num_iter < MAX_BISECTIONS:
        middle = (low + high) / 2
        low, high = (low, middle) if solve(math.exp(middle))[1] > 0 else (middle, high)
        num_iter += 1
    return v.T @ solve(math.exp(low))[0], num_iter
