"""What a backbone is, the registry of those built here, and backbones that branch."""

import copy
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from tailshift.registry import Registry

TailPart: TypeAlias = Literal["last_two_stages", "last_block", "pooling"]
"""What a tail begins with: what each branch of a network has for itself."""


class SplitBackbone(NamedTuple):
    """A backbone in two parts, the second as often as there are branches."""

    trunk: nn.Module
    """Images in, feature maps out."""
    tails: tuple[nn.Module, ...]
    """Each takes what the trunk gives, and gives features (N, ``feature_dim``)."""
    feature_dim: int
    """Length of the feature vector of one tail."""


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
    image_size: int
    """Height and width of the images it is made for; others are taken too."""
    in_channels: int = 3
    """Channels of the images it is made for."""
    feature_dim: int
    """Length of the feature vector."""
    is_pretrained: bool = False
    """Whether the weights come from a training, so that copies of a part keep them."""

    def forward(self, images: Tensor) -> Tensor:
        """Return one feature vector for each image."""
        raise NotImplementedError

    def split(self, at: TailPart, num_tails: int = 1) -> SplitBackbone:
        """Return trunk and tails, for methods with several branches or experts.

        Args:
            at: What the tails begin with.
            num_tails: How many; each has weights of its own.
        """
        raise ValueError(
            f"`model.name` must be a backbone that can be split into branches, but "
            f"{type(self).__name__} cannot. Take resnet32, or a ResNet of timm."
        )

    def several(self, tail: nn.Module, num_tails: int) -> tuple[nn.Module, ...]:
        """Return a part of this backbone, and copies of it with fresh convolutions.

        Published weights are kept in all of them.
        """
        copies = [copy.deepcopy(tail) for _ in range(num_tails - 1)]
        if not self.is_pretrained:
            for other in copies:
                self.initialise(other)
        return tail, *copies

    def initialise(self, part: nn.Module) -> None:
        """Draw the convolutions of a part of the backbone anew, in place."""
        initialise_convolutions(part)


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


def initialise_convolutions(
    module: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_in"
) -> None:
    """Draw every convolution's weights from He's normal distribution, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")


_TrainedOn: TypeAlias = Literal["all", "own_part"]
"""Whether every branch sees the whole batch in training, or each its part of it."""


class BranchedBackbone(Backbone):
    """A shared trunk and several tails; the features of all tails, side by side.

    Each tail has weights of its own (:meth:`Backbone.split`). With
    ``trained_on="own_part"`` a batch in training is a stack of as many equal parts as
    there are tails, and tail k reads part k: the two samplers of BBN [zhou2020]. The
    trunk then reads each part on its own too, so that batch statistics are of one part.

    Args:
        backbone: What to split; it must know how (:meth:`Backbone.split`).
        num_tails: How many branches.
        at: What the branches begin with.
        trained_on: What each tail reads in training.

    Example:
        >>> from tailshift.models import DigitsNet
        >>> backbone = BranchedBackbone(
        ...     DigitsNet(), 2, at="last_block", trained_on="own_part"
        ... )
        >>> backbone(torch.randn(8, 1, 8, 8)).shape  # four pairs
        torch.Size([4, 256])
        >>> backbone.eval()(torch.randn(8, 1, 8, 8)).shape
        torch.Size([8, 256])
    """

    def __init__(
        self,
        backbone: Backbone,
        num_tails: int,
        *,
        at: TailPart,
        trained_on: _TrainedOn = "all",
    ) -> None:
        super().__init__()
        split = backbone.split(at, num_tails)
        self.trunk = split.trunk
        self.tails = nn.ModuleList(split.tails)
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
