"""Maximum likelihood on the simplex, from how often each class is predicted."""

import torch
from torch import Tensor

from tailshift.estimators.base import CalibratorLike
from tailshift.estimators.confusion import ConfusionEstimator, conditional
from tailshift.estimators.likelihood import maximise
from tailshift.estimators.posteriors import Posteriors
from tailshift.priors import VectorLike


class ConfusionLikelihoodEstimator(ConfusionEstimator):
    r"""The class mix under which the shares of predicted classes are likeliest.

    .. math:: \max_q N \sum_j \mu_j \log (A q)_j + (\alpha - 1) \sum_c \log q_c

    over the simplex: maximum likelihood for :math:`\alpha = 1`, and MAP with a
    Dirichlet(α) prior above. A class without held-out samples is given the mean
    prediction of the source.

    Args:
        trained_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: As above.
        calibrator: As above.
        is_soft: Use posteriors instead of the predicted class.
        dirichlet: :math:`\alpha`, at least 1.

    Example:
        >>> logits = torch.randn(2000, 2).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> estimator = ConfusionLikelihoodEstimator(dirichlet=3.0).fit(logits, labels)
        >>> estimator.estimate(logits[labels == 1]).round(decimals=1)
        tensor([0., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        *,
        trained_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "bcts",
        is_soft: bool = True,
        dirichlet: float = 1.0,
    ) -> None:
        if not dirichlet >= 1:
            raise ValueError(f"`dirichlet` must be at least 1, but is {dirichlet:g}.")
        super().__init__(
            trained_prior=trained_prior,
            source_prior=source_prior,
            calibrator=calibrator,
            is_soft=is_soft,
        )
        self.dirichlet = dirichlet

    def _solve(self, joint: Tensor, mu: Tensor) -> tuple[Tensor, int, bool]:
        a, row = conditional(joint), joint.sum(dim=1, keepdim=True)
        # No prediction is impossible: a little of the source's goes to each class.
        a = torch.where(joint.sum(dim=0) > 0, 0.999 * a + 0.001 * row, row)
        rows = Posteriors.of(a + 1e-12)
        num_samples = self._samples.num_samples
        start = self.source_prior_[:, None]
        found = maximise(
            rows,
            torch.ones_like(start),
            start=start,
            weights=num_samples * mu[:, None],
            pseudo_counts=torch.full_like(start, self.dirichlet - 1),
        )
        return found.x[:, 0], found.num_iter, found.converged
