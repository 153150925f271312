"""Mixup: train on blends of two images, and on both of their labels."""

import torch
from torch import Tensor

from tailshift.losses.base import LossFunction, check_share


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
    check_share("share", share)
    if not images.is_floating_point():
        raise TypeError(
            f"`images` must be floating point, but is {images.dtype}. "
            "Normalise them first."
        )
    others = images.index_select(0, permutation)
    return torch.lerp(others, images, share), labels.index_select(0, permutation)


def mixup_loss(
    loss: LossFunction,
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
    check_share("share", share)
    return share * loss(logits, labels) + (1 - share) * loss(logits, other_labels)
