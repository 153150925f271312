"""The head of LWS: a learnt linear head whose classes are scaled."""

import torch
from torch import Tensor, nn

from tailshift.models.heads.head import HEADS, Head, StageFeatures
from tailshift.models.heads.linear import LinearHead


@HEADS.register("scaled_linear")
class ScaledLinearHead(Head):
    r"""Logits :math:`f[c] = s_c (w_c \cdot x + b_c)`, with scales that start at 1.

    Learnable weight scaling of [kang2020]: only the scales are trained, on the head
    and backbone that the first stage has learnt.

    Args:
        feature_dim: Length of the feature vector :math:`x`.
        num_classes: Number of logits.

    Example:
        >>> head = ScaledLinearHead(4, 3)
        >>> x = torch.randn(2, 4)
        >>> torch.equal(head(x), head.linear(x))
        True
    """

    sentence = "A frozen affine map, scaled a class."

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.linear = LinearHead(feature_dim, num_classes)
        self.scales = nn.Parameter(torch.ones(num_classes))

    def begin(self, previous: Head, features: StageFeatures) -> None:
        """Take the linear head over."""
        self.linear.load_state_dict(previous.state_dict())

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `features`, shape (N, d)."""
        logits: Tensor = self.scales * self.linear(features)
        return logits
