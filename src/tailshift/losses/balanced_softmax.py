"""Balanced softmax: cross-entropy that carries the source prior during training."""

import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.reduction import Reduction, check_reduction
from tailshift.priors import VectorLike, as_prior, uniform


def balanced_softmax_loss(
    logits: Tensor,
    labels: Tensor,
    source_prior: VectorLike,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the cross-entropy of logits shifted by the log source prior.

    .. math:: -\log \frac{p_s(y)\, e^{f(x)[y]}}{\sum_c p_s(c)\, e^{f(x)[c]}}

    [hong2021] Eq. (19); also [ren2020]. At test time add :math:`\log p_t` with
    :func:`~tailshift.compensation.post_compensate`.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> labels, source_prior = torch.tensor([0, 2]), torch.tensor([0.7, 0.2, 0.1])
        >>> balanced_softmax_loss(logits, labels, source_prior)
        tensor(1.2099)
    """
    check_reduction(reduction)
    f, y = checks.check_batch(logits, labels)  # (N, C), (N,)
    p_s = as_prior(source_prior, num_classes=f.shape[1], like=f, positive=True)
    return prior_cross_entropy(f, y, p_s.log(), reduction=reduction)


def prior_cross_entropy(
    f: Tensor, y: Tensor, log_p_s: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return Eq. (19) for a checked batch and a checked prior's log, shape (C,)."""
    return F.cross_entropy(f + log_p_s, y, reduction=reduction)


@base.LOSSES.register("balanced_softmax", about=balanced_softmax_loss)
class BalancedSoftmaxLoss(base.PriorLoss):
    """Module form of :func:`balanced_softmax_loss`; the prior is a buffer."""

    def __init__(
        self, source_prior: VectorLike, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(source_prior)
        check_reduction(reduction)
        self.reduction = reduction

    @property
    def logit_prior(self) -> Tensor:
        """The uniform prior: the loss takes the source prior out of the logits."""
        return uniform(len(self.source_prior))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        f, y = checks.check_batch(logits, labels)
        checks.check_num_classes("source_prior", self.source_prior, f)
        return prior_cross_entropy(f, y, self.log_prior(f), reduction=self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        f = checks.as_logits(logits)
        return -F.log_softmax(f + self.log_prior(f), dim=1)
