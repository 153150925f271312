"""What a backbone is, and the registry of those built here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tailshift.registry import Registry


class Split(NamedTuple):
    """The two parts of a backbone; they share its weights."""

    trunk: nn.Module
    """Images in, feature maps out."""
    tail: nn.Module
    """What the trunk gives in, features (N, ``feature_dim``) out."""
    feature_dim: int


class Backbone(nn.Module):
    """Images (N, c, H, W) in, features (N, ``feature_dim``) out."""

    feature_dim: int

    def forward(self, images: Tensor) -> Tensor:
        """Return one feature vector for each image."""
        raise NotImplementedError

    def split(self) -> Split:
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


@dataclass(frozen=True)
class ModelInfo:
    """A registered backbone: how it is built and what it is for.

    Example:
        >>> info = MODELS.get("resnet32")
        >>> info.feature_dim, info.image_size, info.num_parameters
        (64, 32, 463504)
    """

    build: Callable[[int], Backbone]
    """Makes the backbone for a number of input channels."""
    sentence: str
    """What it is, in one sentence."""
    feature_dim: int
    """Length of the feature vector."""
    image_size: int
    """Height and width of the images it is meant for; others are taken too."""
    in_channels: int = 3
    """Channels of the images it is meant for; others are taken too."""

    @property
    def num_parameters(self) -> int:
        """Trainable numbers of the backbone, head not counted."""
        with torch.device("meta"):
            return num_parameters(self.build(self.in_channels))


MODELS: Registry[ModelInfo] = Registry("model")


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
