"""Logit-adjusted loss: cross-entropy that carries a power of the source prior."""

import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.balanced_softmax import prior_cross_entropy
from tailshift.losses.reduction import Reduction, check_reduction
from tailshift.priors import VectorLike, as_prior


def logit_adjusted_loss(
    logits: Tensor,
    labels: Tensor,
    source_prior: VectorLike,
    *,
    tau: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the cross-entropy of logits shifted by τ times the log source prior.

    .. math:: -\log \frac{p_s(y)^\tau\, e^{f(x)[y]}}{\sum_c p_s(c)^\tau\, e^{f(x)[c]}}

    [menon2021]. What is left in the logits is the prior
    :math:`\propto p_s^{1 - \tau}`: with :math:`\tau = 1` this is Balanced Softmax and
    they carry the uniform one, with :math:`\tau = 0` it is cross-entropy.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
        tau: :math:`\tau`, not negative.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> labels, source_prior = torch.tensor([0, 2]), torch.tensor([0.7, 0.2, 0.1])
        >>> logit_adjusted_loss(logits, labels, source_prior, tau=0.5)
        tensor(0.9214)
    """
    check_reduction(reduction)
    checks.check_not_negative("tau", tau)
    f, y = checks.check_batch(logits, labels)  # (N, C), (N,)
    p_s = as_prior(source_prior, num_classes=f.shape[1], like=f, positive=True)
    return prior_cross_entropy(f, y, tau * p_s.log(), reduction=reduction)


@base.LOSSES.register("logit_adjusted", about=logit_adjusted_loss)
class LogitAdjustedLoss(base.PriorLoss):
    """Module form of :func:`logit_adjusted_loss`; the prior is a buffer."""

    def __init__(
        self,
        source_prior: VectorLike,
        *,
        tau: float = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(source_prior)
        check_reduction(reduction)
        checks.check_not_negative("tau", tau)
        self.tau, self.reduction = tau, reduction

    @property
    def logit_prior(self) -> Tensor:
        r""":math:`p_s^{1 - \tau}`, normalised: uniform for τ = 1."""
        return ((1 - self.tau) * self.source_prior.log()).softmax(0)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        f, y = checks.check_batch(logits, labels)
        checks.check_num_classes("source_prior", self.source_prior, f)
        shift = self.tau * self.log_prior(f)
        return prior_cross_entropy(f, y, shift, reduction=self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        f = checks.as_logits(logits)
        return -F.log_softmax(f + self.tau * self.log_prior(f), dim=1)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        return f"{super().extra_repr()}, tau={self.tau}"
