"""Focal loss: cross-entropy that fades where the model is already right."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base
from tailshift.priors import VectorLike


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    class_weights: VectorLike | None = None,
    reduction: base.Reduction = "mean",
) -> Tensor:
    r"""Return the focal loss of softmax probabilities.

    .. math:: w_y\, (1 - p_y)^\gamma \cdot (-\log p_y), \qquad
        p_y = \frac{e^{f(x)[y]}}{\sum_c e^{f(x)[c]}}

    [lin2017], for several classes. With :math:`\gamma = 0` it is cross-entropy, to the
    last bit. The factor comes from the probability itself and never from the weighted
    cross-entropy, whose :math:`e^{-w \ell}` is no probability.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        gamma: :math:`\gamma`, not negative.
        class_weights: :math:`w`, not negative, shape (C,); default 1.
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> focal_loss(logits, torch.tensor([0, 2]))
        tensor(0.2670)
    """
    base.check_reduction(reduction)
    base.check_not_negative("gamma", gamma)
    f, y = base.check_batch(logits, labels)  # (N, C), (N,)
    w = base.weights_for(f, class_weights)
    return base.reduce(base.weigh(softmax_focal(f, y, gamma), y, w), reduction)


def softmax_focal(f: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return the unweighted focal loss of each sample of a checked batch, (N,)."""
    return focal_from_cross_entropy(F.cross_entropy(f, y, reduction="none"), gamma)


def focal_from_cross_entropy(losses: Tensor, gamma: float) -> Tensor:
    r"""Return :math:`(1 - e^{-\ell})^\gamma \ell` for cross-entropies of any shape.

    At :math:`p = 1` the slope of the power is infinite for :math:`\gamma < 1`, though
    that of the product is 0. The power is therefore taken from the smallest normal
    number upwards, where its slope is still finite.
    """
    tiny = torch.finfo(losses.dtype).tiny
    wrongness = -torch.expm1(-losses.clamp(min=tiny))  # 1 − p, exact near p = 1
    return wrongness.pow(gamma) * losses


@base.LOSSES.register("focal", about=focal_loss)
class FocalLoss(base.Loss):
    """Module form of :func:`focal_loss`; the weights, if any, are a buffer."""

    class_weights: Tensor | None

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        class_weights: VectorLike | None = None,
        reduction: base.Reduction = "mean",
    ) -> None:
        super().__init__()
        base.check_reduction(reduction)
        base.check_not_negative("gamma", gamma)
        self.gamma, self.reduction = gamma, reduction
        w = None if class_weights is None else base.as_weights(class_weights).clone()
        self.register_buffer("class_weights", w)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        f, y = base.check_batch(logits, labels)
        losses = base.weigh(softmax_focal(f, y, self.gamma), y, self._weights(f))
        return base.reduce(losses, self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        f = base.as_logits(logits)
        losses = focal_from_cross_entropy(-F.log_softmax(f, dim=1), self.gamma)
        w = self._weights(f)
        return losses if w is None else losses * w

    def _weights(self, f: Tensor) -> Tensor | None:
        if self.class_weights is None:
            return None
        base.check_num_classes("class_weights", self.class_weights, f)
        return self.class_weights.to(f)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        return f"gamma={self.gamma}"
