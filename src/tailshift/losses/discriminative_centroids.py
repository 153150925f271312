"""Discriminative centroids: OLTR's loss that gathers features at class centroids."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.losses.base import check_not_negative
from tailshift.processes import Processes


def centroid_loss(
    features: Tensor,
    labels: Tensor,
    centroids: Tensor,
    *,
    margin: float = 10.0,
    hinge_weight: float = 0.01,
    processes: Processes | None = None,
) -> Tensor:
    r"""Return the centre loss plus a hinge on the distance to the others, a scalar.

    .. math:: \frac{1}{2N} \sum_i \|x_i - c_{y_i}\|^2 + \eta \max \Bigl(0,\;
        m - \frac{1}{N C} \sum_i \sum_{c \ne y_i} \|x_i - c_c\|^2 \Bigr)

    [liu2019], as their code has it: distances are squared, and one hinge is taken of
    the batch's mean, in which a sample's own centroid counts as distance 0. OLTR adds
    0.01 of this to the cross-entropy. Both features and centroids get gradients; detach
    the centroids if they are a moving average.

    The sum over centroids is that of their mean and their spread, so that no N × C
    distances are made.

    Args:
        features: :math:`x`, shape (N, D); half precision is widened to float32.
        labels: :math:`y`, class indices, shape (N,).
        centroids: :math:`c`, shape (C, D).
        margin: :math:`m`, not negative.
        hinge_weight: :math:`\eta`, not negative.
        processes: If the batch is spread over several, what is returned averages
            over them to the loss of all samples; this one's part may then be empty.

    Example:
        >>> features, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
        >>> centroids = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
        >>> centroid_loss(features, labels, centroids)
        tensor(0.5800)
    """
    check_not_negative("margin", margin)
    check_not_negative("hinge_weight", hinge_weight)
    is_whole = processes is None
    x, c = _check_shapes(features, labels, centroids, is_whole)  # (N, D), (C, D)
    own = (x - c.index_select(0, labels.long())).square().sum(1)  # (N,)
    centre = c.mean(0)
    spread = (c - centre).square().sum() / len(c)
    mean_distance = (x - centre).square().sum(1) + spread - own / len(c)  # (N,)
    if processes is None:
        pull, distance = own.mean(), mean_distance.mean()
    else:
        pull, share = processes.mean(torch.stack([own, mean_distance], dim=1))
        distance = processes.differentiable_sum(share / processes.world_size)
    return pull / 2 + hinge_weight * F.relu(margin - distance)


def _check_shapes(
    features: Tensor, labels: Tensor, centroids: Tensor, is_whole: bool
) -> tuple[Tensor, Tensor]:
    if features.ndim != 2 or (is_whole and features.numel() == 0):
        raise ValueError(
            "`features` must have shape (N, D) and not be empty, "
            f"but has shape {tuple(features.shape)}."
        )
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"`labels` must have shape ({len(features)},), one for each row of "
            f"`features`, but has shape {tuple(labels.shape)}."
        )
    if centroids.ndim != 2 or centroids.shape[1] != features.shape[1]:
        raise ValueError(
            f"`centroids` must have shape (C, {features.shape[1]}), as wide as "
            f"`features`, but has shape {tuple(centroids.shape)}."
        )
    x = features.to(torch.promote_types(features.dtype, torch.float32))
    return x, centroids.to(x.dtype)
