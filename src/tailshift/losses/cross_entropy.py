"""Cross-entropy: the loss whose logits carry the source prior."""

import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, *, reduction: base.Reduction = "mean"
) -> Tensor:
    r"""Return the softmax cross-entropy.

    .. math:: -\log \frac{e^{f(x)[y]}}{\sum_c e^{f(x)[c]}}

    [hong2021] Eq. (1) and (2). The logits estimate :math:`p_s(y|x)`: compensate them
    for another prior with :func:`~tailshift.compensation.post_compensate`, which is
    PC Softmax.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> cross_entropy_loss(logits, torch.tensor([0, 2]))
        tensor(0.7531)
    """
    base.check_reduction(reduction)
    f, y = base.check_batch(logits, labels)  # (N, C), (N,)
    return F.cross_entropy(f, y, reduction=reduction)


@base.LOSSES.register("cross_entropy", about=cross_entropy_loss)
class CrossEntropyLoss(base.Loss):
    """Module form of :func:`cross_entropy_loss`."""

    def __init__(self, *, reduction: base.Reduction = "mean") -> None:
        super().__init__()
        base.check_reduction(reduction)
        self.reduction = reduction

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        return cross_entropy_loss(logits, labels, reduction=self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        return -F.log_softmax(base.as_logits(logits), dim=1)
