"""The head of BBN: one classifier over two branches, mixed by a schedule."""

import torch
from torch import Tensor, nn

from tailshift.losses.bilateral import conventional_share
from tailshift.models.heads.head import HEADS, Head


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
