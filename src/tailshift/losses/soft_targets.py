"""Soft targets for any loss that is defined on labels: smoothed ones, and mixup."""

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tailshift.losses import base, checks, distributed
from tailshift.losses.reduction import Reduction, check_reduction, reduce
from tailshift.priors import VectorLike, as_vector
from tailshift.processes import Processes


def soft_target_loss(
    loss: base.LossFunction,
    logits: Tensor,
    targets: Tensor,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the loss that is expected when labels are drawn from the targets.

    .. math:: \sum_c q_c\, \ell(f(x), c)

    For cross-entropy this is the cross-entropy with the soft target :math:`q`.

    Args:
        loss: One of this package's modules whose loss is a mean over samples, or any
            function of logits and labels that gives one value per sample.
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
    wrapped = base.as_loss(loss)
    if wrapped.spans_batch:
        raise TypeError(
            f"`loss` must be a mean over samples, but {type(loss).__name__} looks at "
            "the whole batch. Use mixup_loss or smoothed_loss."
        )
    losses = wrapped.class_losses(logits)  # (N, C)
    if targets.shape != losses.shape:
        raise ValueError(
            f"`targets` must have shape {tuple(losses.shape)}, "
            f"but has shape {tuple(targets.shape)}."
        )
    return reduce((targets.to(losses.dtype) * losses).sum(1), reduction)


class SoftTargetLoss(base.Loss):
    """Module form of :func:`soft_target_loss`: takes soft targets instead of labels."""

    def __init__(
        self, loss: base.LossFunction, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.loss, self.reduction = loss, reduction

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Tell the loss inside."""
        base.as_loss(self.loss).begin_epoch(epoch, num_epochs)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the expected loss of logits (N, C) and targets (N, C)."""
        return soft_target_loss(self.loss, logits, targets, reduction=self.reduction)


_SmoothingShape: TypeAlias = Literal["concave", "linear", "convex"]


def label_smoothing_factors(
    class_counts: VectorLike,
    *,
    head: float = 0.4,
    tail: float = 0.1,
    shape: _SmoothingShape = "concave",
) -> Tensor:
    r"""Return how much of each class's label is given away, float64, shape (C,).

    .. math:: \epsilon_c = \epsilon_{tail} + (\epsilon_{head} - \epsilon_{tail})
        \cdot g\Bigl( \frac{n_c - n_{min}}{n_{max} - n_{min}} \Bigr)

    [zhong2021], with :math:`g(t) = \sin(\pi t / 2)` (``"concave"``), :math:`t`
    (``"linear"``) or :math:`1 - \cos(\pi t / 2)` (``"convex"``). If all counts are
    equal, there is no head, and every factor is ``tail``.

    Args:
        class_counts: :math:`n_c`, not negative, shape (C,).
        head: Factor of the most frequent class, in [0, 1].
        tail: Factor of the rarest class, in [0, 1].
        shape: ``"concave"``, ``"linear"`` or ``"convex"``.

    Example:
        >>> label_smoothing_factors([50, 30, 10])
        tensor([0.4000, 0.3121, 0.1000], dtype=torch.float64)
    """
    checks.check_share("head", head)
    checks.check_share("tail", tail)
    if shape not in get_args(_SmoothingShape):
        raise ValueError(
            f"`shape` must be 'concave', 'linear' or 'convex', but is {shape!r}."
        )
    n = checks.as_class_counts(class_counts, positive=False)
    spread = n.max() - n.min()
    t = (n - n.min()) / torch.where(spread > 0, spread, torch.ones_like(spread))
    if shape == "concave":
        t = torch.sin(math.pi / 2 * t)
    elif shape == "convex":
        t = 1 - torch.cos(math.pi / 2 * t)
    return tail + (head - tail) * t


def smooth_labels(labels: Tensor, factors: VectorLike) -> Tensor:
    r"""Return soft targets: :math:`1 - \epsilon_y` on the label, the rest shared.

    Each other class gets :math:`\epsilon_y / (C - 1)`, as [zhong2021] writes; the
    published code shares among all classes, the label included.

    Args:
        labels: :math:`y`, class indices, shape (N,).
        factors: :math:`\epsilon`, from :func:`label_smoothing_factors`, shape (C,).

    Example:
        >>> smooth_labels(torch.tensor([0, 2]), [0.4, 0.2, 0.1])
        tensor([[0.6000, 0.2000, 0.2000],
                [0.0500, 0.0500, 0.9000]], dtype=torch.float64)
    """
    epsilon = _check_factors(factors).to(labels.device)  # (C,)
    num_classes, y = len(epsilon), labels.long()
    own = epsilon.index_select(0, y)[:, None]  # (N, 1)
    shared = (own / (num_classes - 1)).expand(-1, num_classes)
    return shared.scatter(1, y[:, None], 1 - own)


def smoothed_loss(
    loss: base.LossFunction, logits: Tensor, labels: Tensor, factors: VectorLike
) -> Tensor:
    r"""Return any loss under smoothed labels, reduced as ``loss`` reduces it.

    .. math:: \sum_c q_c\, \ell(f, c) = \ell(f, y) + \epsilon_y \Bigl(
        \frac{1}{C - 1} \sum_{c \ne y} \ell(f, c) - \ell(f, y) \Bigr)

    with the targets :math:`q` of :func:`smooth_labels`. If a loss has a part that
    looks at the whole batch, as LADE's regulariser, that part keeps the hard labels.

    Args:
        loss: A module of this package, or a function that gives one value per sample;
            see :meth:`~tailshift.losses.Loss.class_losses` for the price.
        logits: :math:`f`, shape (N, C), or what else ``loss`` takes.
        labels: :math:`y`, class indices, shape (N,).
        factors: :math:`\epsilon`, shape (C,).

    Example:
        >>> from tailshift.losses import CrossEntropyLoss
        >>> logits = torch.tensor([[2.0, 1.0, 0.0]])
        >>> smoothed_loss(
        ...     CrossEntropyLoss(), logits, torch.tensor([0]), [0.4, 0.2, 0.1]
        ... )
        tensor(1.0076)
    """
    wrapped = base.as_loss(loss)
    value: Tensor = wrapped(logits, labels)
    change = _smoothing(wrapped, logits, labels, _check_factors(factors))
    if value.ndim == 0:
        change = reduce(change, wrapped.reduction)
    return value + change


def _smoothing(
    loss: base.Loss, logits: Tensor, labels: Tensor, epsilon: Tensor
) -> Tensor:
    """Return by how much smoothing changes the loss of each sample, shape (N,)."""
    losses, y = loss.class_losses(logits), labels.long()  # (N, C), (N,)
    if len(epsilon) != losses.shape[1]:
        raise ValueError(
            f"`factors` has {len(epsilon)} entries "
            f"but `logits` has {losses.shape[1]} classes."
        )
    own = losses.gather(1, y[:, None]).squeeze(1)
    others = (losses.sum(1) - own) / (losses.shape[1] - 1)
    return epsilon.to(losses).index_select(0, y) * (others - own)


def _check_factors(factors: VectorLike) -> Tensor:
    epsilon = as_vector(factors, "factors")
    if len(epsilon) < 2:
        raise ValueError("`factors` must be for at least 2 classes, but is for 1.")
    return epsilon


class LabelAwareSmoothing(base.Loss):
    """Module form of :func:`smoothed_loss` around a loss; the factors are a buffer.

    Args:
        loss: A module of this package, or a function that gives one value per sample.
        class_counts: :math:`n_c`, not negative, shape (C,).
        head: Factor of the most frequent class.
        tail: Factor of the rarest class.
        shape: As for :func:`label_smoothing_factors`.
        over_all: Share among all C classes, the label included, as the published code
            of [zhong2021] does.

    Example:
        >>> from tailshift.losses import CrossEntropyLoss
        >>> loss = LabelAwareSmoothing(CrossEntropyLoss(), [50, 30, 10])
        >>> loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
        tensor(1.0076)
    """

    factors: Tensor

    def __init__(
        self,
        loss: base.LossFunction,
        class_counts: VectorLike,
        *,
        head: float = 0.4,
        tail: float = 0.1,
        shape: _SmoothingShape = "concave",
        over_all: bool = False,
    ) -> None:
        super().__init__()
        self.loss, wrapped = loss, base.as_loss(loss)
        self.reduction, self.spans_batch = wrapped.reduction, wrapped.spans_batch
        epsilon = label_smoothing_factors(
            class_counts, head=head, tail=tail, shape=shape
        )
        if over_all:  # ε/C for the label too: it keeps 1 − ε (C − 1)/C
            epsilon = epsilon * (len(epsilon) - 1) / len(epsilon)
        self.register_buffer("factors", _check_factors(epsilon))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (N, C) and labels (N,)."""
        return smoothed_loss(self.loss, logits, labels, self.factors)

    def over_processes(
        self, logits: Tensor, labels: Tensor, processes: Processes
    ) -> Tensor:
        """Return what averages over processes to the loss of all their samples."""
        value = distributed.loss_over_processes(self.loss, logits, labels, processes)
        change = value.new_zeros(0)
        if len(labels):
            change = _smoothing(base.as_loss(self.loss), logits, labels, self.factors)
        return value + processes.mean(change.to(value.dtype))

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Tell the loss inside."""
        base.as_loss(self.loss).begin_epoch(epoch, num_epochs)


def mixup(
    images: Tensor, labels: Tensor, share: float, permutation: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return each image blended with another one, and the other's labels.

    .. math:: \tilde x_i = \lambda x_i + (1 - \lambda)\, x_{\pi(i)}

    [zhang2018], who draw :math:`\lambda` from Beta(α, α) for each batch.

    Args:
        images: :math:`x`, floating point, shape (N, ...).
        labels: :math:`y`, class indices, shape (N,).
        share: :math:`\lambda` in [0, 1], what each image keeps of itself.
        permutation: :math:`\pi`, row indices, shape (N,).

    Returns:
        The blends, shape (N, ...), and :math:`y_{\pi(i)}`, shape (N,).

    Example:
        >>> images, labels = torch.tensor([[0.0], [8.0]]), torch.tensor([3, 5])
        >>> mixup(images, labels, 0.75, torch.tensor([1, 0]))
        (tensor([[2.],
                [6.]]), tensor([5, 3]))
    """
    checks.check_share("share", share)
    if not images.is_floating_point():
        raise TypeError(
            f"`images` must be floating point, but is {images.dtype}. "
            "Normalise them first."
        )
    others = images.index_select(0, permutation)
    return torch.lerp(others, images, share), labels.index_select(0, permutation)


def mixup_loss(
    loss: base.LossFunction,
    logits: Tensor,
    labels: Tensor,
    other_labels: Tensor,
    share: float,
) -> Tensor:
    r"""Return the loss of blended images, weighted between their two labels.

    .. math:: \lambda\, \ell(f(\tilde x), y) + (1 - \lambda)\, \ell(f(\tilde x), y')

    [zhang2018]. It takes any loss, also one that looks at the whole batch, as LADE.

    Args:
        loss: Function or module of logits and labels.
        logits: :math:`f(\tilde x)`, shape (N, C), or what else ``loss`` takes.
        labels: :math:`y`, class indices, shape (N,).
        other_labels: :math:`y'` from :func:`mixup`, shape (N,).
        share: :math:`\lambda` in [0, 1].

    Example:
        >>> from tailshift.losses import cross_entropy_loss
        >>> logits, y, other = torch.tensor([[1.0, 0.0]]), *torch.tensor([[0], [1]])
        >>> mixup_loss(cross_entropy_loss, logits, y, other, 0.75)
        tensor(0.5633)
    """
    checks.check_share("share", share)
    return share * loss(logits, labels) + (1 - share) * loss(logits, other_labels)
