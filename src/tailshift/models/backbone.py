"""What a backbone is, the registry of those built here, and backbones that branch."""

import copy
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from tailshift.registry import Registry


class SplitBackbone(NamedTuple):
    """The two parts of a backbone; they share its weights."""

    trunk: nn.Module
    """Images in, feature maps out."""
    tail: nn.Module
    """What the trunk gives in, features (N, ``feature_dim``) out."""
    feature_dim: int


class Backbone(nn.Module):
    """Images (N, c, H, W) in, features (N, ``feature_dim``) out.

    A registered one is made for a number of input channels.

    Example:
        >>> from tailshift.models import ResNet32
        >>> ResNet32.feature_dim, ResNet32.image_size, num_parameters(ResNet32(3))
        (64, 32, 463504)
    """

    sentence: ClassVar[str]
    """What it is, in one sentence; by default the docstring's first line."""
    image_size: ClassVar[int]
    """Height and width of the images it is meant for; others are taken too."""
    in_channels: ClassVar[int] = 3
    """Channels of the images it is meant for; others are taken too."""
    feature_dim: int
    """Length of the feature vector."""

    def forward(self, images: Tensor) -> Tensor:
        """Return one feature vector for each image."""
        raise NotImplementedError

    def split(self) -> SplitBackbone:
        """Return trunk and tail, for methods with several branches or experts."""
        raise ValueError(
            f"`model.name` must be a backbone that can be split into branches, but "
            f"{type(self).__name__} cannot. Take resnet32, or a ResNet of timm."
        )


class MeanOverPositions(nn.Module):
    """Feature maps (N, c, h, w) in, their means (N, c) out."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the means, shape (N, c)."""
        return x.mean(dim=(2, 3))


MODELS: Registry[Callable[[int], Backbone]] = Registry("model", Backbone)


def num_parameters(module: nn.Module) -> int:
    """Return how many trainable numbers `module` has.

    Example:
        >>> num_parameters(nn.Linear(64, 10))
        650
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def initialise_convolutions(module: nn.Module) -> None:
    """Draw every convolution's weights from He's normal distribution, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")


TrainedOn: TypeAlias = Literal["all", "own_part"]
"""Whether every branch sees the whole batch in training, or each its part of it."""


class BranchedBackbone(Backbone):
    """A shared trunk and several tails; the features of all tails, side by side.

    The first tail is the backbone's own, the others start as its copies. With
    ``trained_on="own_part"`` a batch in training is a stack of as many equal parts as
    there are tails, and tail k reads part k: the two samplers of BBN [zhou2020]. The
    trunk then reads each part on its own too, so that batch statistics are of one part.

    Args:
        backbone: What to split; it must know how (:meth:`Backbone.split`).
        num_tails: How many branches.
        trained_on: What each tail reads in training.

    Example:
        >>> from tailshift.models import DigitsNet
        >>> backbone = BranchedBackbone(DigitsNet(), 2, trained_on="own_part")
        >>> backbone(torch.randn(8, 1, 8, 8)).shape  # four pairs
        torch.Size([4, 256])
        >>> backbone.eval()(torch.randn(8, 1, 8, 8)).shape
        torch.Size([8, 256])
    """

    def __init__(
        self, backbone: Backbone, num_tails: int, *, trained_on: TrainedOn = "all"
    ) -> None:
        super().__init__()
        split = backbone.split()
        self.trunk = split.trunk
        copies = (copy.deepcopy(split.tail) for _ in range(num_tails - 1))
        self.tails = nn.ModuleList([split.tail, *copies])
        self.feature_dim = num_tails * split.feature_dim
        self.trained_on = trained_on

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of all tails, shape (N, feature_dim)."""
        if self.training and self.trained_on == "own_part":
            parts = [self.trunk(part) for part in images.chunk(len(self.tails))]
        else:
            parts = [self.trunk(images)] * len(self.tails)
        features = [tail(x) for tail, x in zip(self.tails, parts, strict=True)]
        return torch.cat(features, dim=1)
