"""Confusion matrices, hard and soft, and the estimators that rest on them."""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from tailshift.estimators.base import ESTIMATORS, CalibratorLike, PriorEstimator
from tailshift.estimators.likelihood import maximise
from tailshift.estimators.posteriors import Posteriors
from tailshift.priors import VectorLike


def project_to_simplex(vector: Tensor) -> Tensor:
    r"""Return the prior nearest to a vector (C,) in Euclidean distance.

    .. math:: q_c = \max(v_c - \theta, 0), \quad \theta
              \text{ such that } \sum_c q_c = 1

    [duchi2008].

    Example:
        >>> project_to_simplex(torch.tensor([0.9, 0.4, -0.5]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    ordered = vector.sort(descending=True).values
    rank = torch.arange(1, len(vector) + 1, dtype=vector.dtype)
    thresholds = (ordered.cumsum(0) - 1) / rank
    support = int((ordered > thresholds).sum())
    q = (vector - thresholds[support - 1]).clamp_min(0)
    return q / q.sum()


def predictions(posteriors: Tensor, *, is_soft: bool) -> Tensor:
    """Return the posteriors (N, C), or a 1 at the largest of each row."""
    if is_soft:
        return posteriors
    hard = torch.zeros_like(posteriors)
    return hard.scatter_(1, posteriors.argmax(dim=1, keepdim=True), 1.0)


def joint_confusion(held_out: Posteriors, labels: Tensor, *, is_soft: bool) -> Tensor:
    r"""Return :math:`J_{jk}`, the share of predicted class j and label k, (C, C)."""
    joint = torch.zeros(2 * (held_out.num_classes,), dtype=torch.float64)
    start = 0
    for p in held_out.passing():
        z = predictions(p, is_soft=is_soft)
        joint.index_add_(1, labels[start : start + len(p)], z.T)
        start += len(p)
    return joint / joint.sum()


def mean_prediction(samples: Posteriors, *, is_soft: bool) -> Tensor:
    r"""Return :math:`\mu_j`, the share of each predicted class, (C,)."""
    total = torch.zeros(samples.num_classes, dtype=torch.float64)
    for p in samples.passing():
        total += predictions(p, is_soft=is_soft).sum(dim=0)
    return total / total.sum()


class ConfusionEstimator(PriorEstimator):
    """An estimator that sees the data through a confusion matrix.

    Args:
        logit_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: Prior of the training data; see there.
        calibrator: Calibration of the logits; see there.
        is_soft: Use posteriors instead of the predicted class.

    Attributes:
        confusion_: Joint shares of predicted class (rows) and label (columns), (C, C).
    """

    def __init__(
        self,
        *,
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
        is_soft: bool = True,
    ) -> None:
        super().__init__(
            logit_prior=logit_prior,
            source_prior=source_prior,
            calibrator=calibrator,
        )
        self.is_soft = is_soft

    def _estimate(self, samples: Posteriors) -> Tensor:
        self.confusion_ = joint_confusion(
            self._held_out, self.labels_, is_soft=self.is_soft
        )
        mu = mean_prediction(samples, is_soft=self.is_soft)
        q, num_iter, converged = self._solve(self.confusion_, mu)
        self._report(num_iter, converged)
        return q

    @abstractmethod
    def _solve(self, joint: Tensor, mu: Tensor) -> tuple[Tensor, int, bool]:
        """Return q (C,), iterations, and whether they converged."""


def conditional(joint: Tensor) -> Tensor:
    r"""Return :math:`A_{jk} = \hat p(j | k)`; a class without samples has zeros."""
    shares = joint.sum(dim=0)
    return joint / torch.where(shares > 0, shares, 1.0)


@ESTIMATORS.register("bbse")
class BBSEEstimator(ConfusionEstimator):
    r"""Black-box shift estimation [lipton2018], with a ridge, on the simplex.

    .. math:: \min_q \|A q - \mu\|^2 + \lambda \|q - p_s\|^2

    where :math:`A_{jk}` is the share of predicted class j among held-out samples of
    class k, and :math:`\mu_j` that among the unlabelled; the solution is projected to
    the simplex. A class without held-out samples keeps its source share.

    Args:
        logit_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: Prior of the training data; see there.
        calibrator: Calibration of the logits; see there.
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
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
        is_soft: bool = True,
        ridge: float = 1e-3,
    ) -> None:
        super().__init__(
            logit_prior=logit_prior,
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


CONFIDENCE = 0.05
MAX_BISECTIONS = 200


@ESTIMATORS.register("rlls")
class RLLSEstimator(ConfusionEstimator):
    r"""Importance weights :math:`1 + \theta`, shrunk to 1 [azizzadenesheli2019].

    .. math:: \min_\theta \|J \theta - (\mu - J \mathbf 1)\| + \Delta \|\theta\|

    with the joint confusion matrix J and the shares :math:`\mu` of predicted classes;
    :math:`\Delta = 3\beta\,(2 l / 3n + \sqrt{2 l / n})` with :math:`l = \log(2C/0.05)`
    bounds, up to :math:`\beta`, the error of J from n held-out samples. The prior is
    :math:`p_h (1 + \theta)` with the held-out shares :math:`p_h`, projected to the
    simplex.

    Args:
        logit_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: Prior of the training data; see there.
        calibrator: Calibration of the logits; see there.
        is_soft: Use posteriors instead of the predicted class.
        beta: :math:`\beta`; the bound itself is far too wide to be used.

    Example:
        >>> logits = torch.randn(2000, 2).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> rlls = RLLSEstimator().fit(logits, labels)
        >>> rlls.estimate(logits[labels == 1]).round(decimals=1)
        tensor([0., 1.], dtype=torch.float64)
    """

    sentence = "Importance weights by the confusion matrix, shrunk to 1."

    def __init__(
        self,
        *,
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
        is_soft: bool = True,
        beta: float = 0.01,
    ) -> None:
        super().__init__(
            logit_prior=logit_prior,
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
        # The weights are relative to the held-out labels, whatever the source prior.
        return project_to_simplex(joint.sum(dim=0) * (1 + theta)), num_iter, True


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


@ESTIMATORS.register("confusion_likelihood")
class ConfusionLikelihoodEstimator(ConfusionEstimator):
    r"""The prior under which the shares of predicted classes are most likely.

    .. math:: \max_q N \sum_j \mu_j \log (A q)_j + (\alpha - 1) \sum_c \log q_c

    over the simplex: maximum likelihood for :math:`\alpha = 1`, and MAP with a
    Dirichlet(α) prior above. A class without held-out samples is given the mean
    prediction of the source.

    Args:
        logit_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: Prior of the training data; see there.
        calibrator: Calibration of the logits; see there.
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
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
        is_soft: bool = True,
        dirichlet: float = 1.0,
    ) -> None:
        if not dirichlet >= 1:
            raise ValueError(f"`dirichlet` must be at least 1, but is {dirichlet:g}.")
        super().__init__(
            logit_prior=logit_prior,
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
