"""Cross-entropy, plain and weighted by class: losses whose prior is known."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.reduction import Reduction, check_reduction, reduce, weigh
from tailshift.priors import VectorLike


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean"
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
    check_reduction(reduction)
    f, y = checks.check_batch(logits, labels)  # (N, C), (N,)
    return F.cross_entropy(f, y, reduction=reduction)


@base.LOSSES.register("cross_entropy", about=cross_entropy_loss)
class CrossEntropyLoss(base.Loss):
    """Module form of :func:`cross_entropy_loss`."""

    @property
    def logit_prior(self) -> Literal["source"]:
        """The prior of the training data."""
        return "source"

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction = reduction

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        return cross_entropy_loss(logits, labels, reduction=self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        return -F.log_softmax(checks.as_logits(logits), dim=1)


def weighted_cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    class_weights: VectorLike,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the mean over samples of the class weight times the cross-entropy.

    .. math:: \frac{1}{N} \sum_i w_{y_i} \cdot
        \Bigl( -\log \frac{e^{f(x_i)[y_i]}}{\sum_c e^{f(x_i)[c]}} \Bigr)

    ``"mean"`` divides by the number of samples :math:`N`, and not by the sum of their
    weights as ``torch.nn.CrossEntropyLoss(weight=...)`` does. Only so is each sample
    weighted by its class alone, whatever else is in the batch, and the logits carry
    the prior :math:`\propto p_s(y)\, w_y` exactly: the expected loss is a cross-entropy
    under :math:`p_s(x, y)\, w_y`. A common factor of the weights changes that prior
    nothing but scales the gradient; with :math:`\sum_c p_s(c)\, w_c = 1` the loss is as
    large as without weights.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        class_weights: :math:`w`, not negative, shape (C,).
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> labels = torch.tensor([0, 2])
        >>> weighted_cross_entropy_loss(logits, labels, [0.5, 1.0, 1.5])
        tensor(0.9259)
    """
    check_reduction(reduction)
    f, y = checks.check_batch(logits, labels)  # (N, C), (N,)
    w = checks.weights_for(f, class_weights)
    return reduce(weigh(F.cross_entropy(f, y, reduction="none"), y, w), reduction)


@base.LOSSES.register("weighted_cross_entropy", about=weighted_cross_entropy_loss)
class WeightedCrossEntropyLoss(base.Loss):
    """Module form of :func:`weighted_cross_entropy_loss`; the weights are a buffer."""

    class_weights: Tensor
    argument: ClassVar[str] = "class_weights"

    def __init__(
        self, class_weights: VectorLike, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction = reduction
        self.register_buffer("class_weights", checks.as_weights(class_weights).clone())

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        f, y = checks.check_batch(logits, labels)
        checks.check_num_classes(self.argument, self.class_weights, f)
        losses = F.cross_entropy(f, y, reduction="none")
        return reduce(weigh(losses, y, self.class_weights.to(f)), self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        f = checks.as_logits(logits)
        return -F.log_softmax(f, dim=1) * self.class_weights.to(f)

    def extra_repr(self) -> str:
        """Say for how many classes the weights are."""
        return f"num_classes={len(self.class_weights)}"
