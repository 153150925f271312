"""ResNet-32 for 32×32 images: the plain form, and the one with two parallel tails."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift.models import backbone


def shortcut_a(x: Tensor, out_channels: int, stride: int) -> Tensor:
    """Return `x` as the sum of a residual block expects it, without parameters.

    Option A of [he2016]: every `stride`-th pixel is kept and zero channels are added,
    half of them before and half after the old ones.

    Args:
        x: Input of the block, shape (N, c, H, W).
        out_channels: Channels after the block, c plus an even number.
        stride: Stride of the block's first convolution.

    Example:
        >>> shortcut_a(torch.ones(1, 2, 4, 4), out_channels=4, stride=2)[0, :, 0, 0]
        tensor([0., 1., 1., 0.])
    """
    extra = (out_channels - x.shape[1]) // 2
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra, extra))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside an option-A shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = _conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.out_channels = out_channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, shape (N, out_channels, H / stride, W / stride).

        Args:
            x: Shape (N, in_channels, H, W).
        """
        residual = F.relu(self.bn1(self.conv1(x)), inplace=True)
        residual = self.bn2(self.conv2(residual))
        if x.shape != residual.shape:
            x = shortcut_a(x, self.out_channels, self.stride)
        return F.relu(residual + x, inplace=True)


@backbone.MODELS.register("resnet32")
class ResNet32(backbone.Backbone):
    """ResNet-32 of [he2016] for small images: 64 features.

    A 3×3 convolution to 16 channels, then five blocks each of 16, 32 and 64 channels,
    the latter two at half and a quarter of the height and width, then the mean over
    all positions. Convolutions start from He's normal distribution.

    Args:
        in_channels: Channels of the images.

    Example:
        >>> ResNet32()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    sentence = "ResNet-32 for 32×32 images, parameter-free shortcuts."
    image_size = 32
    feature_dim = 64

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = _stem(in_channels, 16)
        self.stage1 = _stage(16, 16, num_blocks=5)
        self.stage2 = _stage(16, 32, num_blocks=5, stride=2)
        self.stage3 = _stage(32, 64, num_blocks=5, stride=2)
        backbone.initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, shape (N, 64), of `images`, shape (N, c, H, W)."""
        x = self.stage2(self.stage1(self.stem(images)))  # (N, 32, H/2, W/2)
        return _mean_over_positions(self.stage3(x))

    def split(
        self, at: backbone.TailPart, num_tails: int = 1
    ) -> backbone.SplitBackbone:
        """Return the parts; stages that stand more than once are narrow."""
        trunk = nn.Sequential(self.stem, self.stage1)
        if at == "last_two_stages":
            return _narrow_split(trunk, num_tails)
        first = len(self.stage3) if at == "pooling" else -1
        trunk.extend([self.stage2, self.stage3[:first]])
        tail = nn.Sequential(*self.stage3[first:], backbone.MeanOverPositions())
        return backbone.SplitBackbone(trunk, self.several(tail, num_tails), 64)


@backbone.MODELS.register("resnet32_two_branch")
class TwoBranchResNet32(backbone.Backbone):
    """ResNet-32 whose last block stands twice, side by side: 128 features.

    As :class:`ResNet32`, but the last stage has four blocks, and two parallel blocks
    of 64 channels read its output; their outputs are concatenated. The network of
    [zhou2020], with which the CIFAR-100-LT numbers of [hong2021] were made.

    Args:
        in_channels: Channels of the images.

    Example:
        >>> TwoBranchResNet32()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 128])
    """

    sentence = "ResNet-32 with two parallel last blocks, as the paper's CIFAR rows."
    image_size = 32
    feature_dim = 128

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = _stem(in_channels, 16)
        self.stage1 = _stage(16, 16, num_blocks=5)
        self.stage2 = _stage(16, 32, num_blocks=5, stride=2)
        self.stage3 = _stage(32, 64, num_blocks=4, stride=2)
        self.branch1 = BasicBlock(64, 64)
        self.branch2 = BasicBlock(64, 64)
        backbone.initialise_convolutions(self)

    def trunk(self, images: Tensor) -> Tensor:
        """Return what both branches read, shape (N, 64, H / 4, W / 4)."""
        features: Tensor = self.stage3(self.stage2(self.stage1(self.stem(images))))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, shape (N, 128), of `images`, shape (N, c, H, W)."""
        x = self.trunk(images)
        return _mean_over_positions(torch.cat([self.branch1(x), self.branch2(x)], 1))

    def split(
        self, at: backbone.TailPart, num_tails: int = 1
    ) -> backbone.SplitBackbone:
        """Return the parts; both branches, as blocks, are BBN's own network."""
        trunk = nn.Sequential(self.stem, self.stage1)
        if at == "last_two_stages":
            return _narrow_split(trunk, num_tails)
        trunk.extend([self.stage2, self.stage3])
        pool = backbone.MeanOverPositions()
        if at == "pooling":
            trunk.append(_SideBySide(self.branch1, self.branch2))
            return backbone.SplitBackbone(trunk, self.several(pool, num_tails), 128)
        blocks = self.several(self.branch2, num_tails - 1) if num_tails > 1 else ()
        tails = tuple(nn.Sequential(block, pool) for block in (self.branch1, *blocks))
        return backbone.SplitBackbone(trunk, tails, 64)


class _SideBySide(nn.Module):
    """Maps in, those of all parts, one after the other in the channels, out."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps of all parts, shape (N, sum of channels, h, w)."""
        return torch.cat([part(x) for part in self.parts], dim=1)


NARROW = (24, 48)
"""Channels of the second and third stage of each of SADE's experts [zhang2022]."""


def _narrow_split(trunk: nn.Module, num_tails: int) -> backbone.SplitBackbone:
    return backbone.SplitBackbone(
        trunk, tuple(_narrow_tail() for _ in range(num_tails)), NARROW[1]
    )


def _narrow_tail() -> nn.Sequential:
    tail = nn.Sequential(
        _stage(16, NARROW[0], num_blocks=5, stride=2),
        _stage(*NARROW, num_blocks=5, stride=2),
        backbone.MeanOverPositions(),
    )
    backbone.initialise_convolutions(tail)
    return tail


def _conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


def _stem(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        _conv3x3(in_channels, out_channels),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def _stage(
    in_channels: int, out_channels: int, *, num_blocks: int, stride: int = 1
) -> nn.Sequential:
    first = BasicBlock(in_channels, out_channels, stride)
    others = [BasicBlock(out_channels, out_channels) for _ in range(num_blocks - 1)]
    return nn.Sequential(first, *others)


def _mean_over_positions(x: Tensor) -> Tensor:
    return x.mean(dim=(2, 3))  # (N, c, h, w) -> (N, c)
