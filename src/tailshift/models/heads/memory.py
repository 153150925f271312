"""The head of OLTR: features completed from a memory of class centroids."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift.models.heads.class_means import class_means
from tailshift.models.heads.head import HEADS, Head, StageFeatures
from tailshift.models.heads.linear import LinearHead

SMALLEST = 1e-12
"""Divides instead of 0, if a feature is 0 and lies on a centroid."""


class MemoryOutput(NamedTuple):
    """What a memory head gives in training: the loss needs more than logits."""

    logits: Tensor
    """Shape (N, C)."""
    features: Tensor
    """:math:`x`, shape (N, d)."""
    centroids: Tensor
    """:math:`c`, shape (C, d)."""


@HEADS.register("memory")
class MemoryHead(Head):
    r"""The dynamic meta-embedding of OLTR, and its cosine classifier [liu2019].

    A feature x asks the memory, the centroids :math:`c`, for what images of its kind
    have in common, :math:`m = \sum_c o_c c_c` with :math:`o = \mathrm{softmax}(W_o x +
    b_o)`; the selector :math:`e = \tanh(W_e x + b_e)` decides how much of it to add:

    .. math::
        f = s\, \frac{\lVert z \rVert}{1 + \lVert z \rVert} \cos(w_c, z), \quad
        z = \frac{r}{\min_c \lVert x - c_c \rVert} (x + e \odot m)

    The factor before the bracket is how reachable x is from the memory: far from every
    centroid, logits are small. With :math:`v = x + e \odot m` and the smallest distance
    :math:`\delta` this is :math:`f = s\, w_c / \lVert w_c \rVert \cdot v / (\lVert v
    \rVert + \delta / r)`, the form computed here, which no distance of 0 divides.

    As in the authors' code the centroids start as the class means, the hallucinator
    :math:`W_o` as the classifier of the first stage, and the logits give centroids no
    gradient: :func:`~tailshift.losses.centroid_loss` alone moves them.

    Args:
        feature_dim: Length of the feature vector :math:`x`.
        num_classes: Number of logits.
        scale: :math:`s`, the largest logit.
        reach: :math:`r`.

    Example:
        >>> head = MemoryHead(2, 2).eval()
        >>> _ = head.weight.data.copy_(torch.eye(2))
        >>> head(torch.tensor([[3.0, 0.0]])).detach()  # empty memory: s · 3 / (3 + 0.3)
        tensor([[14.5455,  0.0000]])
    """

    sentence = "The cosine of features completed from class centroids."

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        scale: float = 16.0,
        reach: float = 10.0,
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.scale = scale
        self.reach = reach
        self.centroids = nn.Parameter(torch.zeros(num_classes, feature_dim))
        self.hallucinator = nn.Linear(feature_dim, num_classes)
        self.selector = nn.Linear(feature_dim, feature_dim)
        self.weight = nn.Parameter(torch.empty(num_classes, feature_dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as a linear layer's

    def begin(self, previous: Head, features: StageFeatures) -> None:
        """Start the memory at the class means, and ask it as the linear head did."""
        assert isinstance(previous, LinearHead)
        self.hallucinator.load_state_dict(previous.state_dict())
        with torch.no_grad():
            self.centroids.copy_(class_means(*features.train(), self.num_classes))

    def forward(self, features: Tensor) -> Tensor | MemoryOutput:
        """Return the logits, shape (N, C), of `features`, shape (N, d).

        In training they come with what the loss needs beside them.
        """
        x, c = features, self.centroids.detach()
        memory = self.hallucinator(x).softmax(1).to(c.dtype) @ c  # (N, d)
        v = _widened(x + self.selector(x).tanh() * memory)
        length = v.norm(dim=1, keepdim=True) + nearest_distance(x, c) / self.reach
        z = (v / length.clamp(min=SMALLEST)).to(self.weight.dtype)
        logits = self.scale * F.linear(z, F.normalize(self.weight))
        if not self.training:
            return logits
        return MemoryOutput(logits, features, self.centroids)


def nearest_distance(features: Tensor, centroids: Tensor) -> Tensor:
    """Return how far each feature is from its nearest centroid, shape (N, 1).

    The nearest is found by a matrix product, around the centroids' mean, where it has
    the most digits. Its distance is then taken anew, so that a feature that lies on a
    centroid has distance 0 and a finite gradient.

    Args:
        features: Shape (N, d); half precision is widened to float32.
        centroids: Shape (C, d).

    Example:
        >>> x, c = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 1.0]])
        >>> nearest_distance(x, c).tolist()
        [[1.0]]
    """
    x, c = _widened(features), _widened(centroids)
    with torch.no_grad():
        centre = c.mean(0)
        nearest = torch.cdist(x - centre, c - centre).argmin(1)
    distances: Tensor = (x - c[nearest]).norm(dim=1, keepdim=True)
    return distances


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
