"""LDAM: cross-entropy of cosines with a larger margin for rarer classes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.reduction import Reduction, check_reduction, reduce, weigh
from tailshift.priors import VectorLike


def ldam_margins(class_counts: VectorLike, *, max_margin: float = 0.5) -> Tensor:
    r"""Return the margin of each class, float64, shape (C,).

    .. math:: m_c = m_{max} \Bigl( \frac{\min_j n_j}{n_c} \Bigr)^{1/4}

    [cao2019]: :math:`m_c \propto n_c^{-1/4}`, the rarest class has the largest.

    Example:
        >>> ldam_margins([160, 10])
        tensor([0.2500, 0.5000], dtype=torch.float64)
    """
    checks.check_not_negative("max_margin", max_margin)
    n = checks.as_class_counts(class_counts)
    return max_margin * (n.min() / n) ** 0.25


def ldam_loss(
    cosines: Tensor,
    labels: Tensor,
    class_counts: VectorLike,
    *,
    max_margin: float = 0.5,
    scale: float = 30.0,
    class_weights: VectorLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the label-distribution-aware margin loss.

    .. math:: -w_y \log \frac{e^{s (\cos_y - m_y)}}
        {e^{s (\cos_y - m_y)} + \sum_{c \ne y} e^{s \cos_c}}

    [cao2019], with the margins of :func:`ldam_margins`. The model answers with the
    logits :math:`s \cos_c`, without margins. Deferred re-weighting gives weights late
    in training. Their mean is over samples, as in
    :func:`~tailshift.losses.weighted_cross_entropy_loss`.

    Args:
        cosines: Cosines of features and class vectors, shape (N, C); half precision is
            widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        class_counts: :math:`n_c`, positive, shape (C,).
        max_margin: :math:`m_{max}`, not negative.
        scale: :math:`s`, positive.
        class_weights: :math:`w`, not negative, shape (C,); default 1.
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> cosines = torch.tensor([[0.9, 0.1], [0.3, 0.4]])
        >>> ldam_loss(cosines, torch.tensor([0, 1]), [160, 10], scale=10.0)
        tensor(2.0111)
    """
    check_reduction(reduction)
    checks.check_positive("scale", scale)
    f, y = checks.check_batch(cosines, labels, name="cosines")  # (N, C), (N,)
    m = ldam_margins(class_counts, max_margin=max_margin)
    checks.check_num_classes("class_counts", m, f, logits_name="cosines")
    w = checks.weights_for(f, class_weights, logits_name="cosines")
    return reduce(weigh(_margin_losses(f, y, m.to(f), scale), y, w), reduction)


def _margin_losses(f: Tensor, y: Tensor, m: Tensor, scale: float) -> Tensor:
    own = m.index_select(0, y)[:, None]  # m_y, (N, 1)
    z = scale * f.scatter_add(1, y[:, None], -own)
    return F.cross_entropy(z, y, reduction="none")


@base.LOSSES.register("ldam", about=ldam_loss)
class LDAMLoss(base.Loss):
    """Module form of :func:`ldam_loss`; margins and class weights are buffers.

    The weights are 1 until :meth:`set_class_weights`, and saved in ``state_dict``.

    Example:
        >>> loss = LDAMLoss([160, 10])
        >>> loss.set_class_weights([0.1, 1.9])
        >>> loss.state_dict()["class_weights"]
        tensor([0.1000, 1.9000], dtype=torch.float64)
    """

    margins: Tensor
    class_weights: Tensor

    def __init__(
        self,
        class_counts: VectorLike,
        *,
        max_margin: float = 0.5,
        scale: float = 30.0,
        class_weights: VectorLike | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        checks.check_positive("scale", scale)
        self.max_margin, self.scale, self.reduction = max_margin, scale, reduction
        m = ldam_margins(class_counts, max_margin=max_margin)
        self.register_buffer("margins", m)
        self.register_buffer("class_weights", torch.ones_like(m))
        if class_weights is not None:
            self.set_class_weights(class_weights)

    def set_class_weights(self, class_weights: VectorLike) -> None:
        """Weigh the classes from here on, as deferred re-weighting does."""
        w = checks.as_weights(class_weights)
        if w.shape != self.margins.shape:
            raise ValueError(
                f"`class_weights` has {len(w)} entries "
                f"but `class_counts` had {len(self.margins)}."
            )
        self.class_weights.copy_(w)

    def forward(self, cosines: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of cosines (N, C) and labels (N,)."""
        f, y = checks.check_batch(cosines, labels, name="cosines")
        checks.check_num_classes("class_counts", self.margins, f, logits_name="cosines")
        losses = _margin_losses(f, y, self.margins.to(f), self.scale)
        return reduce(weigh(losses, y, self.class_weights.to(f)), self.reduction)

    def class_losses(self, cosines: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        f = checks.as_logits(cosines, name="cosines")
        z = self.scale * f
        own = z - self.scale * self.margins.to(f)  # s (cos_c − m_c)
        losses = F.softplus(_log_sum_exp_of_others(z) - own)
        return losses * self.class_weights.to(f)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        settings = f"max_margin={self.max_margin}, scale={self.scale}"
        return f"num_classes={len(self.margins)}, {settings}"


def _log_sum_exp_of_others(z: Tensor) -> Tensor:
    r"""Return :math:`\log \sum_{j \ne c} e^{z_j}` for each class c, shape (N, C)."""
    total = z.logsumexp(1, keepdim=True)
    top = F.one_hot(z.argmax(1), z.shape[1]).bool()  # (N, C)
    # Any class but the first has p <= 1/2, so that 1 − p keeps its digits.
    p = (z - total).exp().masked_fill(top, 0.0)
    of_top = z.masked_fill(top, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(top, of_top, total + torch.log1p(-p))
