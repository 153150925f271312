"""Adapters change nothing at first, and then what their equations say."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.models import (
    AdaptedBackbone,
    Adapter,
    DigitsNet,
    FrozenBackbone,
    TimmBackbone,
    add_adapters,
    build_backbone,
)
from tailshift.models.adapters import AdapterName


def _adapted(name: AdapterName) -> tuple[Any, Any]:
    """Return a small vision transformer in float64, and a copy with adapters."""
    plain = TimmBackbone("test_vit", image_size=32).double().eval()
    adapted = copy.deepcopy(plain)
    add_adapters(adapted, name, num_classes=100)
    return plain, adapted.double()


@pytest.mark.parametrize("name", ["adaptformer", "lora"])
def test_add_adapters__change_nothing_at_first(name: AdapterName) -> None:
    plain, adapted = _adapted(name)
    images = torch.randn(3, 3, 32, 32).double()
    assert torch.equal(adapted(images), plain(images))
    parts = [part for part in adapted.modules() if isinstance(part, Adapter)]
    assert len(parts) == (12 if name == "lora" else 6)
    assert {part.down.out_features for part in parts} == {8}  # 100 / (2 · 6) is 8.3


def _draw(adapted: Any) -> None:
    for part in adapted.modules():
        if isinstance(part, Adapter):
            for parameter in part.parameters():
                torch.nn.init.normal_(parameter, std=0.1)


def test_adaptformer__is_added_beside_the_mlp() -> None:
    """Block by block, by the equation, from the parts of the plain network."""
    plain, adapted = _adapted("adaptformer")
    _draw(adapted)
    images = torch.randn(2, 3, 32, 32).double()
    seen: list[Tensor] = []
    for block in adapted.model.blocks:
        block.register_forward_hook(lambda m, given, out: seen.extend((given[0], out)))
    adapted(images)
    assert len(seen) == 12
    pairs = zip(plain.model.blocks, adapted.model.blocks, strict=True)
    for k, (block, other) in enumerate(pairs):
        a = other.mlp.adapter
        x = seen[2 * k] + block.attn(block.norm1(seen[2 * k]))
        z = F.layer_norm(x, (64,), a.norm.weight, a.norm.bias)
        z = (z @ a.down.weight.T + a.down.bias).clamp(min=0)
        added = a.scale * (z @ a.up.weight.T + a.up.bias)
        expected = x + block.mlp(block.norm2(x)) + added
        torch.testing.assert_close(seen[2 * k + 1], expected)
        assert added.abs().max() > 1e-3


def test_lora__is_a_network_of_other_weights() -> None:
    """W + B A in place of W gives the same features."""
    plain, adapted = _adapted("lora")
    _draw(adapted)
    images = torch.randn(2, 3, 32, 32).double()
    before = plain(images)
    with torch.no_grad():
        for block, other in zip(plain.model.blocks, adapted.model.blocks, strict=True):
            for part in ("qkv", "proj"):
                lora = getattr(other.attn, part).adapter
                weight = getattr(block.attn, part).weight
                weight += lora.up.weight @ lora.down.weight
    torch.testing.assert_close(adapted(images), plain(images))
    assert (plain(images) - before).abs().max() > 0.01


def test_adapted_backbone__is_the_equation_from_images_and_from_features() -> None:
    plain = FrozenBackbone(DigitsNet()).double()
    adapted = add_adapters(plain, "residual", num_classes=100).double()
    images = torch.randn(3, 1, 8, 8).double()
    x = plain(images)  # (3, 128)
    assert torch.equal(adapted(images), x)
    assert torch.equal(adapted(x), x)
    _draw(adapted)
    assert isinstance(adapted, AdaptedBackbone)
    a = adapted.adapter
    assert (a.down.out_features, adapted.feature_dim) == (64, 128)
    centred = x - x.mean(1, keepdim=True)
    z = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    z = z * a.norm.weight + a.norm.bias
    z = (z @ a.down.weight.T + a.down.bias).clamp(min=0)
    added = a.scale * (z @ a.up.weight.T + a.up.bias)
    torch.testing.assert_close(adapted(images), x + added)
    torch.testing.assert_close(adapted(x), x + added)
    assert added.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("model", "network"), [("timm:test_resnet", "ResNet"), ("resnet32", "ResNet32")]
)
def test_add_adapters__no_vision_transformer(model: str, network: str) -> None:
    with pytest.raises(ValueError, match="adapter") as error:
        add_adapters(build_backbone(model), "lora", 10)
    assert str(error.value) == (
        "`model.adapter` must be 'none' unless the network is a vision transformer of "
        f"timm, such as timm:vit_base_patch16_224, but is 'lora' for {network}."
    )
