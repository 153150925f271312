"""The head of SADE: three cosine experts, and how much each counts."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tailshift.models.heads.head import HEADS, Head
from tailshift.models.heads.linear import CosineHead


class ExpertOutput(NamedTuple):
    """What an expert head gives in training: each expert has a loss of its own."""

    logits: Tensor
    """The mean over experts, shape (N, C)."""
    experts: Tensor
    """:math:`v`, shape (3, N, C)."""


@HEADS.register("experts")
class ExpertHead(Head):
    r"""Logits :math:`f = \sum_k a_k v_k` of experts, each with features of its own.

    The features of a :class:`~tailshift.models.BranchedBackbone` stand side by side, a
    piece for each expert, whose :math:`v_k` is a cosine head's [zhang2022]. The shares
    :math:`a` are a buffer: equal after training, and learnt without labels for a target
    by :meth:`Run.adapt_experts <tailshift.Run.adapt_experts>`.

    Args:
        feature_dim: Length of all pieces together, a multiple of `num_experts`.
        num_classes: Number of logits.
        num_experts: How many; SADE's loss takes 3.
        scale: The largest logit of an expert.

    Example:
        >>> head = ExpertHead(6, 4)
        >>> head(torch.randn(2, 6)).experts.shape
        torch.Size([3, 2, 4])
        >>> head.eval()(torch.randn(2, 6)).shape
        torch.Size([2, 4])
    """

    sentence = "Three cosine heads, weighted by shares."

    shares: Tensor

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        num_experts: int = 3,
        scale: float = 30.0,
    ) -> None:
        super().__init__()
        piece, rest = divmod(feature_dim, num_experts)
        if rest:
            raise ValueError(
                f"`num_experts` must divide the {feature_dim} features, but is "
                f"{num_experts}."
            )
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.heads = nn.ModuleList(
            CosineHead(piece, num_classes, scale=scale) for _ in range(num_experts)
        )
        self.register_buffer("shares", torch.full((num_experts,), 1 / num_experts))

    def experts(self, features: Tensor) -> Tensor:
        """Return each expert's logits, shape (3, N, C), of `features`, shape (N, d)."""
        pieces = features.chunk(len(self.heads), dim=1)
        return torch.stack(
            [head(piece) for head, piece in zip(self.heads, pieces, strict=True)]
        )

    def forward(self, features: Tensor) -> Tensor | ExpertOutput:
        """Return the shared logits, shape (N, C), of `features`, shape (N, d).

        In training the experts count alike, and their own logits come along.
        """
        v = self.experts(features)  # (3, N, C)
        if self.training:
            return ExpertOutput(v.mean(0), v)
        return (self.shares.to(v)[:, None, None] * v).sum(0)
