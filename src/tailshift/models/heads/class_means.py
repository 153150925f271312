"""The nearest-class-mean head."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.models.heads.head import HEADS, Head, StageFeatures


@HEADS.register("class_means")
class ClassMeanHead(Head):
    r"""Logits: how near an image is to the mean of each class [kang2020].

    .. math:: f[c] = -\tfrac12 s \lVert \hat x - m_c \rVert^2

    with features centred on the training mean and scaled to length 1,
    :math:`\hat x = (x - \mu) / \lVert x - \mu \rVert`, and :math:`m_c` the mean of
    :math:`\hat x` over the training images of class c. Nothing is trained; the scale
    :math:`s` changes probabilities, never the nearest class.

    Args:
        feature_dim: Length of the feature vector :math:`x`.
        num_classes: Number of logits.
        scale: :math:`s`.

    Example:
        >>> head = ClassMeanHead(2, 2, scale=1.0)
        >>> _ = head.means.copy_(torch.eye(2))
        >>> head(torch.tensor([[3.0, 0.0]])).tolist()
        [[-0.0, -1.0]]
    """

    sentence = "The distance to the mean of each class."

    centre: Tensor
    means: Tensor

    def __init__(
        self, feature_dim: int, num_classes: int, *, scale: float = 16.0
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.scale = scale
        self.register_buffer("centre", torch.zeros(feature_dim))
        self.register_buffer("means", torch.zeros(num_classes, feature_dim))

    def begin(self, previous: Head, features: StageFeatures) -> None:
        """Take the means of the training features."""
        x, labels = features.train()
        self.centre.copy_(x.mean(0))
        self.means.copy_(class_means(self._directions(x), labels, self.num_classes))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `features`, shape (N, d)."""
        x, m = self._directions(features), self.means.to(features)
        squared = x.square().sum(1, keepdim=True) - 2 * x @ m.T + m.square().sum(1)
        return -self.scale / 2 * squared

    def _directions(self, features: Tensor) -> Tensor:
        return F.normalize(features - self.centre.to(features))


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean feature of each class, shape (C, d).

    Args:
        features: Shape (N, d).
        labels: Shape (N,); each class must occur.
        num_classes: C.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
        >>> class_means(x, torch.tensor([0, 0, 1]), 2).tolist()
        [[2.0, 0.0], [0.0, 5.0]]
    """
    counts = labels.bincount(minlength=num_classes)
    sums = features.new_zeros(num_classes, features.shape[1])
    return sums.index_add(0, labels, features) / counts[:, None]
