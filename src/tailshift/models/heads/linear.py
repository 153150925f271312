"""The affine head, that of LWS, which scales its classes, and the cosine head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift.models.heads.head import HEADS, Head, StageFeatures


@HEADS.register("linear")
class LinearHead(nn.Linear, Head):
    r"""Logits :math:`f = W x + b`, started as PyTorch starts a linear layer.

    Args:
        feature_dim: Length of the feature vector :math:`x`.
        num_classes: Number of logits.

    Example:
        >>> import torch
        >>> LinearHead(64, 10)(torch.zeros(2, 64)).shape
        torch.Size([2, 10])
    """

    sentence = "An affine map: one weight vector and bias per class."

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.feature_dim = feature_dim
        self.num_classes = num_classes


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
