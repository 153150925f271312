"""Discriminative centroids: OLTR's loss that gathers features at class centroids."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.losses.checks import check_not_negative
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
    0.01 of this to the cross-entropy. The hinge gives the centroids a gradient, the
    centre loss gives it to the features alone: :func:`centroid_pull` moves centroids.

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
    c_y = c.index_select(0, labels.long())  # (N, D)
    pulled = (x - c_y.detach()).square().sum(1)  # (N,)
    centre = c.mean(0)
    spread = (c - centre).square().sum() / len(c)
    mean_distance = (  # (N,)
        (x - centre).square().sum(1) + spread - (x - c_y).square().sum(1) / len(c)
    )
    if processes is None:
        pull, distance = pulled.mean(), mean_distance.mean()
    else:
        pull, share = processes.mean(torch.stack([pulled, mean_distance], dim=1))
        distance = processes.differentiable_sum(share / processes.world_size)
    return pull / 2 + hinge_weight * F.relu(margin - distance)


def centroid_pull(
    features: Tensor,
    labels: Tensor,
    centroids: Tensor,
    *,
    processes: Processes | None = None,
) -> Tensor:
    r"""Return 0, whose gradient moves each centroid towards the features of its class.

    .. math:: \frac{\partial}{\partial c_c} =
        \frac{1}{N (1 + n_c)} \sum_{i:\, y_i = c} (c_c - x_i)

    with :math:`n_c` samples of class c in the batch. That is how the code of [liu2019]
    updates them: by a rule, whatever weight the centre loss has. To be added to a loss.

    Args:
        features: :math:`x`, shape (N, D); they get no gradient.
        labels: :math:`y`, class indices, shape (N,).
        centroids: :math:`c`, shape (C, D).
        processes: As for :func:`centroid_loss`.

    Example:
        >>> features, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
        >>> centroids = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
        >>> centroid_pull(features, labels, centroids).backward()
        >>> centroids.grad.tolist()
        [[-0.5, 0.0], [0.0, 0.0]]
    """
    together = processes or Processes()
    x, c = _check_shapes(features, labels, centroids, processes is None)
    y, everyone = labels.long(), together.labels(labels).long()
    everyone = everyone.remainder(
        len(c) + 1
    )  # −1, where a process has none, comes last
    counts = c.new_zeros(len(c) + 1).index_add(0, everyone, c.new_ones(len(everyone)))
    squared = (x.detach() - c.index_select(0, y)).square().sum(1)  # (N,)
    rule = together.mean(squared / (2 * (1 + counts[y])))
    return rule - rule.detach()


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
