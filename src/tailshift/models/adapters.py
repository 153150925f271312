"""Small trainable parts beside frozen layers, or behind a frozen backbone."""

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tailshift.models.backbone import Backbone
from tailshift.models.timm_backbone import TimmBackbone

AdapterName: TypeAlias = Literal["none", "adaptformer", "lora", "residual"]
"""What is trained beside the frozen blocks or behind them, if anything."""

_LEAST_DIM = 4
"""Length of the bottleneck for few classes."""

_MOST_RESIDUAL_DIM = 64
"""The longest bottleneck of an adapter behind a backbone."""


class Adapter(nn.Module):
    """Base of what is added to the output of a frozen layer; it begins with 0."""


class AdaptFormer(Adapter):
    r"""A bottleneck beside a block's MLP, :math:`s W_u \max(0, W_d \bar x)` [chen2022].

    :math:`\bar x` is the normalised input of the block's second half and :math:`s` is
    learnt, as in LIFT [shi2024].

    Args:
        width: Length of a token.
        dim: Length of the bottleneck.

    Example:
        >>> AdaptFormer(64, 4)(torch.randn(2, 5, 64)).abs().max().item()
        0.0
    """

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.down = nn.Linear(width, dim)
        self.up = nn.Linear(dim, width)
        self.scale = nn.Parameter(torch.ones(1))
        nn.init.kaiming_normal_(self.down.weight, a=math.sqrt(5))
        for zeros in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zeros)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return what is added, of the shape of the tokens (N, T, width)."""
        added: Tensor = self.scale * self.up(self.down(self.norm(tokens)).relu())
        return added


class LoRA(Adapter):
    r"""A matrix of low rank beside that of a linear layer, :math:`B A x` [hu2022].

    Args:
        in_features: Length of :math:`x`.
        out_features: Length of the layer's output.
        dim: Rank of :math:`B A`.

    Example:
        >>> LoRA(64, 192, 4)(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 192])
    """

    def __init__(self, in_features: int, out_features: int, dim: int) -> None:
        super().__init__()
        self.down = nn.Linear(in_features, dim, bias=False)
        self.up = nn.Linear(dim, out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's output."""
        added: Tensor = self.up(self.down(x))
        return added


class Beside(nn.Module):
    """A frozen layer and what is trained beside it: the sum of both outputs.

    Args:
        layer: The layer.
        adapter: Takes the same input, and gives an output of the same shape.
    """

    def __init__(self, layer: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.layer = layer
        self.adapter = adapter

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        both: Tensor = self.layer(x) + self.adapter(x)
        return both


class AdaptedBackbone(Backbone):
    r"""A frozen backbone, and an adapter that is trained on its features x.

    .. math:: x + s W_u \max(0, W_d \bar x)

    with the normalised features :math:`\bar x` and a bottleneck of at most 64. Training
    starts from the features themselves. They come from a bank, or from images.

    Args:
        backbone: Gives features; takes them as well if they come from a bank.

    Example:
        >>> from tailshift.models import DigitsNet
        >>> plain = DigitsNet()
        >>> images = torch.randn(2, 1, 8, 8)
        >>> torch.equal(AdaptedBackbone(plain)(images), plain(images))
        True
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_dim = width = backbone.feature_dim
        self.adapter = AdaptFormer(width, min(width, _MOST_RESIDUAL_DIM))

    def forward(self, images: Tensor) -> Tensor:
        """Return the adapted features (N, feature_dim) of images, or of a bank's."""
        x: Tensor = self.backbone(images)
        adapted: Tensor = x + self.adapter(x)
        return adapted


def adapter_dim(num_classes: int, num_blocks: int) -> int:
    r"""Return the bottleneck that gives all adapters about as many weights as the head.

    A power of two, :math:`2^{\lfloor \log_2 (C / 2L) \rfloor}`, as LIFT [shi2024] has
    it, but at least 4.

    Args:
        num_classes: :math:`C`.
        num_blocks: :math:`L`.

    Example:
        >>> [adapter_dim(C, 12) for C in (10, 100, 365, 1000, 8142)]
        [4, 4, 8, 32, 256]
    """
    share = num_classes / (2 * num_blocks)
    return max(_LEAST_DIM, 2 ** math.floor(math.log2(share)) if share >= 1 else 1)


def add_adapters(backbone: Backbone, name: AdapterName, num_classes: int) -> Backbone:
    """Return a backbone with adapters: beside its blocks, in place, or behind it.

    Args:
        backbone: Has a vision transformer of timm in it, unless the adapter is
            ``"residual"``, which is behind any.
        name: Which adapters.
        num_classes: Decides the size of those beside blocks: see :func:`adapter_dim`.
    """
    if name == "none":
        return backbone
    if name == "residual":
        return AdaptedBackbone(backbone)
    blocks = _blocks(backbone, name)
    dim = adapter_dim(num_classes, len(blocks))
    for block in blocks:
        if name == "lora":
            for part in ("qkv", "proj"):
                layer = getattr(block.attn, part)
                lora = LoRA(layer.in_features, layer.out_features, dim)
                setattr(block.attn, part, Beside(layer, lora))
        else:
            before = nn.Sequential(block.norm2, block.mlp)  # both see what norm2 sees
            width = block.attn.qkv.in_features
            block.norm2, block.mlp = (
                nn.Identity(),
                Beside(before, AdaptFormer(width, dim)),
            )
    return backbone


def _blocks(backbone: nn.Module, name: str) -> list[Any]:
    found = [
        part.model for part in backbone.modules() if isinstance(part, TimmBackbone)
    ]
    blocks = [*getattr(found[0], "blocks", ())] if found else []
    parts = ("norm2", "mlp", "attn.qkv", "attn.proj")
    for block in blocks:
        names = dict(block.named_modules())
        linear = (names.get(part) for part in parts[2:])
        if not names.keys() >= set(parts) or not all(
            isinstance(layer, nn.Linear) for layer in linear
        ):
            blocks = []
            break
    if not blocks:
        network = type(found[0] if found else backbone).__name__
        raise ValueError(
            "`model.adapter` must be 'none' unless the network is a vision transformer "
            f"of timm, such as timm:vit_base_patch16_224, but is {name!r} for "
            f"{network}."
        )
    return blocks
