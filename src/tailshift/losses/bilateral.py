"""The loss of BBN: two batches' labels, mixed by a schedule."""

import torch.nn.functional as F
from torch import Tensor

from tailshift.losses.base import LOSSES, Loss
from tailshift.losses.checks import check_batch
from tailshift.losses.reduction import Reduction


def bilateral_loss(
    logits: Tensor,
    labels: Tensor,
    other_labels: Tensor,
    *,
    share: float,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the cross-entropies with two labels, mixed.

    .. math:: a\, \mathrm{CE}(f, y_c) + (1 - a)\, \mathrm{CE}(f, y_r)

    [zhou2020]: the logits are of the features of a conventional and a re-balanced
    sample, mixed with the same :math:`a`.

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y_c`, of the conventional samples, shape (N,).
        other_labels: :math:`y_r`, of the re-balanced ones, shape (N,).
        share: :math:`a`, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> f, y_c, y_r = torch.zeros(1, 4), torch.tensor([0]), torch.tensor([3])
        >>> bilateral_loss(f, y_c, y_r, share=0.3)
        tensor(1.3863)
    """
    check_batch(logits, labels)
    check_batch(logits, other_labels)
    conventional = F.cross_entropy(logits, labels, reduction=reduction)
    rebalanced = F.cross_entropy(logits, other_labels, reduction=reduction)
    return share * conventional + (1 - share) * rebalanced


@LOSSES.register("bilateral", about=bilateral_loss)
class BilateralLoss(Loss):
    """Module form of :func:`bilateral_loss`; the labels of both batches are stacked.

    Args:
        t_max: :math:`T_{max}`; None takes the epochs of the training.
    """

    def __init__(self, *, t_max: int | None = None) -> None:
        super().__init__()
        self.share, self.t_max = 1.0, t_max

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Set a, which falls from 1: :math:`1 - (T/T_{max})^2` after T epochs."""
        self.share = conventional_share(epoch, self.t_max or num_epochs)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of logits (N, C) and labels (2N,)."""
        y_c, y_r = labels.chunk(2)
        return bilateral_loss(logits, y_c, y_r, share=self.share)


def conventional_share(epoch: int, num_epochs: int) -> float:
    """Return a, the weight of the conventional branch, in an epoch counted from 0."""
    return 1 - (epoch / num_epochs) ** 2
