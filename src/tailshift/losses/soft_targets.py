"""Soft targets for any loss that is defined on labels: the expected loss."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from tailshift.losses.reduction import Reduction, check_reduction, reduce

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""What maps logits (N, C) and labels (N,) to a scalar or to one value a sample."""


def soft_target_loss(
    loss: Loss, logits: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    r"""Return the loss that is expected when labels are drawn from the targets.

    .. math:: \sum_c q_c\, \ell(f(x), c)

    For cross-entropy this is the cross-entropy with the soft target :math:`q`.

    Args:
        loss: One of this package's modules whose loss is a mean over samples, or any
            function of logits and labels that gives one value a sample.
        logits: :math:`f`, shape (N, C), or what else ``loss`` takes.
        targets: :math:`q`, rows that sum to 1, shape (N, C).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> from tailshift.losses import CrossEntropyLoss
        >>> logits = torch.tensor([[2.0, 1.0, 0.0]])
        >>> targets = torch.tensor([[0.5, 0.5, 0.0]])
        >>> soft_target_loss(CrossEntropyLoss(), logits, targets)
        tensor(0.9076)
    """
    check_reduction(reduction)
    if hasattr(loss, "class_losses") and not hasattr(loss, "reduction"):
        raise TypeError(
            f"`loss` must be a mean over samples, but {type(loss).__name__} looks at "
            "the whole batch. Use mixup_loss or smoothed_loss."
        )
    losses = class_losses(loss, logits)  # (N, C)
    if targets.shape != losses.shape:
        raise ValueError(
            f"`targets` must have shape {tuple(losses.shape)}, "
            f"but has shape {tuple(targets.shape)}."
        )
    return reduce((targets.to(losses.dtype) * losses).sum(1), reduction)


def class_losses(loss: Loss, logits: Tensor) -> Tensor:
    r"""Return :math:`\ell(f(x_i), c)` for each sample and each class, shape (N, C).

    The modules of this package know it in closed form (``class_losses``), at the price
    of one softmax. Of any other function, which must give one value a sample, the rows
    of ``logits`` are repeated C times: one call on N·C rows, C times the work.

    Example:
        >>> from functools import partial
        >>> from tailshift.losses import cross_entropy_loss
        >>> loss = partial(cross_entropy_loss, reduction="none")
        >>> class_losses(loss, torch.tensor([[2.0, 1.0, 0.0]]))
        tensor([[0.4076, 1.4076, 2.4076]])
    """
    closed_form: Callable[[Tensor], Tensor] | None = getattr(loss, "class_losses", None)
    if closed_form is not None:
        return closed_form(logits)
    num_samples, num_classes = logits.shape
    rows = logits[:, None].expand(-1, num_classes, -1).reshape(-1, num_classes)
    labels = torch.arange(num_classes, device=logits.device).repeat(num_samples)
    losses = loss(rows, labels)  # (N·C,)
    if losses.shape != labels.shape:
        raise ValueError(
            f"`loss` must give one value a sample, but gave shape "
            f"{tuple(losses.shape)} for {len(labels)}. Make it with reduction='none'."
        )
    return losses.view(num_samples, num_classes)


class SoftTargetLoss(nn.Module):
    """Module form of :func:`soft_target_loss`: takes soft targets where labels went."""

    def __init__(self, loss: Loss, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_reduction(reduction)
        self.loss, self.reduction = loss, reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the expected loss of logits (N, C) and targets (N, C)."""
        return soft_target_loss(self.loss, logits, targets, reduction=self.reduction)
