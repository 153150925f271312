"""BBSE: the class mix that explains how often each class is predicted."""

import torch
from torch import Tensor

from tailshift.estimators.base import CalibratorLike
from tailshift.estimators.confusion import ConfusionEstimator, conditional
from tailshift.estimators.simplex import project_to_simplex
from tailshift.priors import VectorLike


class BBSEEstimator(ConfusionEstimator):
    r"""Black-box shift estimation [lipton2018], with a ridge, on the simplex.

    .. math:: \min_q \|A q - \mu\|^2 + \lambda \|q - p_s\|^2

    where :math:`A_{jk}` is the share of predicted class j among held-out samples of
    class k, and :math:`\mu_j` that among the unlabelled; the solution is projected to
    the simplex. A class without held-out samples keeps its source share.

    Args:
        trained_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: As above.
        calibrator: As above.
        is_soft: Use posteriors instead of the predicted class.
        ridge: :math:`\lambda`; the columns of A sum to 1.

    Example:
        >>> logits = torch.randn(2000, 2).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> bbse = BBSEEstimator().fit(logits, labels)
        >>> bbse.estimate(logits[labels == 1]).round(decimals=1)
        tensor([0., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        *,
        trained_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "bcts",
        is_soft: bool = True,
        ridge: float = 1e-3,
    ) -> None:
        super().__init__(
            trained_prior=trained_prior,
            source_prior=source_prior,
            calibrator=calibrator,
            is_soft=is_soft,
        )
        self.ridge = ridge

    def _solve(self, joint: Tensor, mu: Tensor) -> tuple[Tensor, int, bool]:
        a = conditional(joint)
        away = mu - a @ self.source_prior_  # solved for q − p_s
        normal = a.T @ a
        normal.diagonal().add_(self.ridge)
        shift = torch.linalg.lstsq(normal, (a.T @ away)[:, None], driver="gelsd")
        q = self.source_prior_ + shift.solution[:, 0]
        return project_to_simplex(q), 1, True
