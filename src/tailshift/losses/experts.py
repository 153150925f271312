"""Cross-entropies of several experts, each with its logits shifted by class."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.losses import base, checks
from tailshift.losses.reduction import Reduction, check_reduction, reduce
from tailshift.priors import VectorLike


def expert_losses(v: Tensor, y: Tensor, shifts: Tensor) -> Tensor:
    """Return the sum of the experts' cross-entropies per sample, shape (N,).

    Args:
        v: Each expert's logits, shape (K, N, C).
        y: Class indices, shape (N,).
        shifts: What is added to each expert's logits, shape (K, C).
    """
    num_experts = len(v)
    shifted = (v + shifts[:, None]).flatten(0, 1)  # (K·N, C)
    losses = F.cross_entropy(shifted, y.repeat(num_experts), reduction="none")
    return losses.view(num_experts, -1).sum(0)


def check_experts(
    expert_logits: Tensor, labels: Tensor, num_experts: int
) -> tuple[Tensor, Tensor]:
    """Return the logits in at least float32, and the labels."""
    v = _widen_experts(expert_logits, num_experts)
    _, y = checks.check_batch(v[0], labels, name="expert_logits[0]")
    return v, y


def _widen_experts(expert_logits: Tensor, num_experts: int) -> Tensor:
    """Return logits of shape (K, N, C) in at least float32."""
    shape = tuple(expert_logits.shape)
    if len(shape) != 3 or shape[0] != num_experts:
        raise ValueError(
            f"`expert_logits` must have shape ({num_experts}, N, C), but has shape "
            f"{shape}."
        )
    if not expert_logits.is_floating_point():
        raise TypeError(
            f"`expert_logits` must be floating point, but is {expert_logits.dtype}."
        )
    return expert_logits.to(torch.promote_types(expert_logits.dtype, torch.float32))


class ExpertsLoss(base.PriorLoss):
    """Base: the sum of the experts' cross-entropies, with shifts that depend on p_s.

    Args:
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
        num_experts: K.
        reduction: ``"mean"`` (over samples), ``"sum"`` or ``"none"``.
    """

    scale = 1.0
    """Factor of the sum over experts."""

    def __init__(
        self, source_prior: VectorLike, num_experts: int, reduction: Reduction
    ) -> None:
        super().__init__(source_prior)
        check_reduction(reduction)
        self.num_experts, self.reduction = num_experts, reduction

    def shifts(self, p_s: Tensor) -> Tensor:
        """Return what is added to each expert's logits in training, shape (K, C)."""
        raise NotImplementedError

    def forward(self, expert_logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the experts' logits (K, N, C) and labels (N,)."""
        v, y = check_experts(expert_logits, labels, self.num_experts)
        checks.check_num_classes(
            "source_prior", self.source_prior, v[0], logits_name="expert_logits"
        )
        losses = expert_losses(v, y, self.shifts(self.source_prior.to(v)))
        return reduce(self.scale * losses, self.reduction)

    def class_losses(self, expert_logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        v = _widen_experts(expert_logits, self.num_experts)
        shifts = self.shifts(self.source_prior.to(v))[:, None]
        return -self.scale * F.log_softmax(v + shifts, dim=2).sum(0)
