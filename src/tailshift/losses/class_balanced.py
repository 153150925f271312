"""Class-balanced losses: weights from the effective number of samples."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.cross_entropy import (
    WeightedCrossEntropyLoss,
    weighted_cross_entropy_loss,
)
from tailshift.losses.focal import (
    FocalForm,
    check_form,
    focal_from_cross_entropy,
    softmax_focal,
)
from tailshift.losses.reduction import Reduction, check_reduction, reduce, weigh
from tailshift.priors import VectorLike


def class_balanced_weights(class_counts: VectorLike, *, beta: float = 0.9999) -> Tensor:
    r"""Return weights inverse to the effective numbers of samples, float64, shape (C,).

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}, \qquad \sum_c w_c = C

    [cui2019]. :math:`\beta = 0` gives every class the weight 1; towards
    :math:`\beta = 1`, which is allowed as the limit, they become :math:`\propto 1/n_c`.

    Args:
        class_counts: :math:`n_c`, positive, shape (C,).
        beta: :math:`\beta` in [0, 1].

    Example:
        >>> class_balanced_weights([100, 10, 1], beta=0.9)
        tensor([0.2393, 0.3674, 2.3932], dtype=torch.float64)
    """
    checks.check_share("beta", beta)
    n = checks.as_class_counts(class_counts)
    if beta == 1:
        w = 1 / n
    else:
        log_beta = torch.log1p(n.new_tensor(beta - 1))
        w = (beta - 1) / torch.expm1(n * log_beta)
    return w * (len(n) / w.sum())


def class_balanced_cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    class_counts: VectorLike,
    *,
    beta: float = 0.9999,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the cross-entropy weighted by :func:`class_balanced_weights`.

    [cui2019]. The logits carry the prior :math:`\propto p_s(c)\, w_c`; see
    :func:`~tailshift.losses.weighted_cross_entropy_loss` on the mean.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        class_counts: :math:`n_c`, positive, shape (C,).
        beta: :math:`\beta` in [0, 1].
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> class_balanced_cross_entropy_loss(
        ...     logits, torch.tensor([0, 2]), [100, 10, 1], beta=0.9
        ... )
        tensor(1.3634)
    """
    w = class_balanced_weights(class_counts, beta=beta)
    checks.check_num_classes("class_counts", w, checks.as_logits(logits))
    return weighted_cross_entropy_loss(logits, labels, w, reduction=reduction)


@base.LOSSES.register(
    "class_balanced_cross_entropy", about=class_balanced_cross_entropy_loss
)
class ClassBalancedCrossEntropyLoss(WeightedCrossEntropyLoss):
    """Module form of :func:`class_balanced_cross_entropy_loss`, weights as a buffer."""

    argument = "class_counts"

    def __init__(
        self,
        class_counts: VectorLike,
        *,
        beta: float = 0.9999,
        reduction: Reduction = "mean",
    ) -> None:
        w = class_balanced_weights(class_counts, beta=beta)
        super().__init__(w, reduction=reduction)
        self.beta = beta

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        return f"{super().extra_repr()}, beta={self.beta}"


def class_balanced_focal_loss(
    logits: Tensor,
    labels: Tensor,
    class_counts: VectorLike,
    *,
    beta: float = 0.9999,
    gamma: float = 2.0,
    form: FocalForm = "softmax",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the focal loss weighted by :func:`class_balanced_weights`.

    The form ``"softmax"`` is :math:`w_y (1 - p_y)^\gamma (-\log p_y)`. The form
    ``"sigmoid"``, that of [cui2019], sees :math:`C` yes-no questions,

    .. math:: w_y \sum_c (1 - q_c)^\gamma (-\log q_c), \qquad
        q_c = \begin{cases} \sigma(f(x)[c]) & c = y \\
        1 - \sigma(f(x)[c]) & \text{else} \end{cases}

    and divides by the number of positives, which is the number of samples :math:`N`.
    For it, start the classifier's bias at :math:`-\log(C - 1)`. To compensate logits
    trained with it, undo it first by
    :func:`~tailshift.losses.focal_log_posteriors`; what they carry then is
    :math:`\propto p_s w`.

    Args:
        logits: :math:`f`, shape (N, C); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        class_counts: :math:`n_c`, positive, shape (C,).
        beta: :math:`\beta` in [0, 1].
        gamma: :math:`\gamma`, not negative.
        form: ``"softmax"`` or ``"sigmoid"``.
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
        >>> class_balanced_focal_loss(
        ...     logits, torch.tensor([0, 2]), [100, 10, 1], beta=0.9
        ... )
        tensor(0.5897)
    """
    check_reduction(reduction)
    checks.check_not_negative("gamma", gamma)
    check_form(form)
    f, y = checks.check_batch(logits, labels)  # (N, C), (N,)
    w = class_balanced_weights(class_counts, beta=beta)
    checks.check_num_classes("class_counts", w, f)
    return reduce(weigh(_FOCAL[form](f, y, gamma), y, w.to(f)), reduction)


def _sigmoid_focal(f: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return the unweighted sigmoid focal loss of each sample, summed over classes."""
    own = torch.zeros_like(f).scatter(1, y[:, None], 1.0)  # one-hot, (N, C)
    return _binary_focal(f * (2 * own - 1), gamma).sum(1)


def _binary_focal(z: Tensor, gamma: float) -> Tensor:
    """Return (1 − σ(z))^γ · (−log σ(z)); its power is an exponential, so never 0^γ."""
    return (-gamma * F.softplus(z)).exp() * F.softplus(-z)


_FOCAL = {"softmax": softmax_focal, "sigmoid": _sigmoid_focal}


@base.LOSSES.register("class_balanced_focal", about=class_balanced_focal_loss)
class ClassBalancedFocalLoss(base.Loss):
    """Module form of :func:`class_balanced_focal_loss`; the weights are a buffer."""

    class_weights: Tensor

    def __init__(
        self,
        class_counts: VectorLike,
        *,
        beta: float = 0.9999,
        gamma: float = 2.0,
        form: FocalForm = "softmax",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        checks.check_not_negative("gamma", gamma)
        check_form(form)
        self.beta, self.gamma, self.form, self.reduction = beta, gamma, form, reduction
        w = class_balanced_weights(class_counts, beta=beta)
        self.register_buffer("class_weights", w)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        f, y = checks.check_batch(logits, labels)
        checks.check_num_classes("class_counts", self.class_weights, f)
        losses = _FOCAL[self.form](f, y, self.gamma)
        return reduce(weigh(losses, y, self.class_weights.to(f)), self.reduction)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        f = checks.as_logits(logits)
        if self.form == "softmax":
            losses = focal_from_cross_entropy(-F.log_softmax(f, dim=1), self.gamma)
        else:
            no, yes = _binary_focal(-f, self.gamma), _binary_focal(f, self.gamma)
            losses = no.sum(1, keepdim=True) - no + yes
        return losses * self.class_weights.to(f)

    def extra_repr(self) -> str:
        """Say what the loss was made with."""
        settings = f"beta={self.beta}, gamma={self.gamma}, form={self.form!r}"
        return f"num_classes={len(self.class_weights)}, {settings}"
