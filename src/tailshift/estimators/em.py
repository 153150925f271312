"""EM: the target prior under which the unlabelled data is likeliest."""

import torch
from torch import Tensor

from tailshift.checks import check_logits
from tailshift.estimators.base import ESTIMATORS, CalibratorLike, PriorEstimator
from tailshift.estimators.likelihood import maximise
from tailshift.estimators.posteriors import Posteriors
from tailshift.priors import VectorLike

PSEUDO_SAMPLES = 1.0  # a class, in an estimate that nothing was held out for


@ESTIMATORS.register("em")
class EMEstimator(PriorEstimator):
    r"""Maximum likelihood label shift (MLLS) by EM [saerens2002] [alexandari2020].

    .. math:: \max_q \sum_i \log \sum_c \frac{q_c}{m_c}\, p(c|x_i)

    over the simplex, with calibrated posteriors p and their held-out mean m. The
    objective is concave; iterations are accelerated and end when at most ``tolerance``
    is left to gain, a sample. If classes are many and samples few, its variance is
    large: see :class:`~tailshift.estimators.MAPEstimator`.

    Args:
        logit_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: Prior of the training data; see there.
        calibrator: Calibration of the logits; see there.
        tolerance: Bound on the log-likelihood left, a sample.
        max_iter: Most passes over the data.

    Example:
        >>> import torch
        >>> logits = torch.randn(2000, 2).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> em = EMEstimator().fit(logits, labels)
        >>> em.estimate(logits[labels == 1]).round(decimals=1)
        tensor([0., 1.], dtype=torch.float64)
        >>> em.converged_
        True
    """

    def __init__(
        self,
        *,
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
        tolerance: float = 1e-8,
        max_iter: int = 10_000,
    ) -> None:
        super().__init__(
            logit_prior=logit_prior,
            source_prior=source_prior,
            calibrator=calibrator,
        )
        self.tolerance = tolerance
        self.max_iter = max_iter

    def _estimate(self, samples: Posteriors) -> Tensor:
        start = self.source_prior_[:, None]
        found = maximise(
            samples,
            self.denominator_[:, None],
            start=start,
            tolerance=self.tolerance,
            max_iter=self.max_iter,
        )
        self._report(found.num_iter, found.converged)
        return found.x[:, 0]


def estimate_uncalibrated(logits: Tensor, logit_prior: Tensor) -> Tensor:
    r"""Return the prior of unlabelled logits whose probabilities nobody has checked.

    .. math:: \max_q \sum_i \log \sum_c \frac{q_c}{p_c}\, p(c|x_i)
              + C \sum_c p_c \log q_c

    The trained prior p stands for the held-out mean posterior, and a pseudo-sample a
    class holds the estimate near it if classes are hard to tell apart.

    Args:
        logits: Shape (N, C).
        logit_prior: The prior that they carry, shape (C,). A class without any has
            none in the estimate.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
        >>> estimate_uncalibrated(logits, torch.tensor([0.5, 0.5]).double())
        tensor([0.6009, 0.3991], dtype=torch.float64)
    """
    f = check_logits(logits)  # (N, C)
    known = logit_prior > 0
    p = logit_prior[known][:, None]  # (C, 1)
    samples = Posteriors(
        f[:, known], lambda f: f.double().softmax(dim=1), num_classes=len(p)
    )
    pseudo_counts = PSEUDO_SAMPLES * len(logit_prior) * p
    found = maximise(samples, p, start=p, pseudo_counts=pseudo_counts)
    prior = torch.zeros_like(logit_prior)
    prior[known] = found.x[:, 0]
    return prior
