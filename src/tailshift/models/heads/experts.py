"""Heads over several branches: the three experts of SADE, the two halves of BBN."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tailshift.losses.bilateral import conventional_share
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


@HEADS.register("bilateral")
class BilateralHead(Head):
    r"""Logits of mixed branches, :math:`W\, 2[a f_c; (1 - a) f_r] + b` [zhou2020].

    Half of the features come from the conventional branch, half from the re-balancing
    one. In training :math:`a = 1 - (T/T_{max})^2` falls from 1 to 0, with T the
    epochs done; in evaluation both halves count alike, :math:`a = 0.5`.

    Args:
        feature_dim: Length of both halves together.
        num_classes: Number of logits.
        t_max: :math:`T_{max}`; None takes the epochs of the training.

    Example:
        >>> head = BilateralHead(4, 3)
        >>> head.begin_epoch(5, 10)
        >>> head.share
        0.75
    """

    sentence = "One affine map over two mixed branches."

    def __init__(
        self, feature_dim: int, num_classes: int, *, t_max: int | None = None
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.linear = nn.Linear(feature_dim, num_classes)
        self.share, self.t_max = 1.0, t_max

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Set the share of the conventional branch."""
        self.share = conventional_share(epoch, self.t_max or num_epochs)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `features`, shape (N, d)."""
        a = self.share if self.training else 0.5
        f_c, f_r = features.chunk(2, dim=1)
        logits: Tensor = self.linear(2 * torch.cat([a * f_c, (1 - a) * f_r], dim=1))
        return logits
