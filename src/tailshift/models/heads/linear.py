"""The affine head."""

from torch import nn

from tailshift.models.heads.head import HEADS, Head


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
