"""The cosine head: only directions count."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift.models.heads.head import HEADS, Head


@HEADS.register("cosine")
class CosineHead(Head):
    r"""Logits :math:`f[c] = s \cos(w_c, x)`.

    The cosine head of LDAM [cao2019] and SADE [zhang2022]: a class cannot win by the
    length of its weight vector.

    Args:
        feature_dim: Length of the feature vector :math:`x`.
        num_classes: Number of logits.
        scale: :math:`s`, the largest logit.

    Example:
        >>> head = CosineHead(2, 3, scale=30.0)
        >>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0], [0, 2], [-1, 0]]))
        >>> head(torch.tensor([[5.0, 0]])).tolist()
        [[30.0, 0.0, -30.0]]
    """

    sentence = "The cosine with each class's vector, scaled."

    def __init__(
        self, feature_dim: int, num_classes: int, *, scale: float = 30.0
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(num_classes, feature_dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `features`, shape (N, d)."""
        x, w = F.normalize(features), F.normalize(self.weight)
        return self.scale * F.linear(x, w)
