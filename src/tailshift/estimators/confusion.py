"""Confusion matrices, hard and soft, and estimators that rest on them."""

from abc import abstractmethod

import torch
from torch import Tensor

from tailshift.estimators.base import CalibratorLike, PriorEstimator
from tailshift.estimators.posteriors import Posteriors
from tailshift.priors import VectorLike


def predictions(posteriors: Tensor, *, is_soft: bool) -> Tensor:
    """Return the posteriors (N, C), or a 1 at the largest of each row."""
    if is_soft:
        return posteriors
    hard = torch.zeros_like(posteriors)
    return hard.scatter_(1, posteriors.argmax(dim=1, keepdim=True), 1.0)


def joint_confusion(
    held_out: Posteriors, labels: Tensor, *, is_soft: bool, weights: Tensor | None
) -> Tensor:
    r"""Return :math:`J_{jk}`, the share of predicted class j and label k, (C, C)."""
    joint = torch.zeros(2 * (held_out.num_classes,), dtype=torch.float64)
    start = 0
    for p in held_out:
        z = predictions(p, is_soft=is_soft)
        if weights is not None:
            z = z * weights[start : start + len(p), None].double()
        joint.index_add_(1, labels[start : start + len(p)], z.T)
        start += len(p)
    return joint / joint.sum()


def mean_prediction(
    samples: Posteriors, *, is_soft: bool, weights: Tensor | None
) -> Tensor:
    r"""Return :math:`\mu_j`, the share of each predicted class, (C,)."""
    total = torch.zeros(samples.num_classes, dtype=torch.float64)
    start = 0
    for p in samples:
        z = predictions(p, is_soft=is_soft)
        if weights is None:
            total += z.sum(dim=0)
        else:
            total += weights[start : start + len(p)].double() @ z
        start += len(p)
    return total / total.sum()


class ConfusionEstimator(PriorEstimator):
    """An estimator that sees the data through a confusion matrix.

    Args:
        trained_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: As above.
        calibrator: As above.
        is_soft: Use posteriors instead of the predicted class.

    Attributes:
        confusion_: Joint shares of predicted class (rows) and label (columns), (C, C).
    """

    def __init__(
        self,
        *,
        trained_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "bcts",
        is_soft: bool = True,
    ) -> None:
        super().__init__(
            trained_prior=trained_prior,
            source_prior=source_prior,
            calibrator=calibrator,
        )
        self.is_soft = is_soft

    def _estimate(self, samples: Posteriors) -> Tensor:
        self.confusion_ = joint_confusion(
            self._held_out, self.labels_, is_soft=self.is_soft, weights=None
        )
        mu = mean_prediction(samples, is_soft=self.is_soft, weights=None)
        q, num_iter, converged = self._solve(self.confusion_, mu)
        self._report(num_iter, converged)
        return q

    def _replicate(self, weights: Tensor, held_out_weights: Tensor) -> Tensor:
        columns = []
        for v, v_held_out in zip(weights.T, held_out_weights.T, strict=True):
            joint = joint_confusion(
                self._held_out, self.labels_, is_soft=self.is_soft, weights=v_held_out
            )
            mu = mean_prediction(self._samples, is_soft=self.is_soft, weights=v)
            columns.append(self._solve(joint, mu)[0])
        return torch.stack(columns, dim=1)

    @abstractmethod
    def _solve(self, joint: Tensor, mu: Tensor) -> tuple[Tensor, int, bool]:
        """Return q (C,), iterations, and whether they converged."""


def conditional(joint: Tensor) -> Tensor:
    r"""Return :math:`A_{jk} = \hat p(j | k)`; a class without samples has zeros."""
    shares = joint.sum(dim=0)
    return joint / torch.where(shares > 0, shares, 1.0)
