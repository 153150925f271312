"""Modulated attention against a loop over places, and where it stands in a network."""

import math

import pytest
import torch
from torch import Tensor, nn

from tailshift.methods import OLTR
from tailshift.methods.oltr import AttentiveBackbone, ModulatedAttention
from tailshift.models import DigitsNet, build_backbone, num_parameters

CHANNELS, HEIGHT, WIDTH = 4, 2, 3


def _attention() -> ModulatedAttention:
    attention = ModulatedAttention(CHANNELS, HEIGHT, WIDTH).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    return attention


def _affine(layer: nn.Module, x: list[float]) -> list[float]:
    weight = layer.weight.flatten(1).tolist()  # type: ignore[operator, union-attr] # a layer's
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()  # type: ignore[operator, union-attr] # a layer's
    return [
        sum(w * v for w, v in zip(row, x, strict=True)) + b
        for row, b in zip(weight, bias, strict=True)
    ]


def _softmax(values: list[float]) -> list[float]:
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def _reference(attention: ModulatedAttention, image: Tensor) -> list[list[float]]:
    """Return the maps of one image, by place and channel."""
    places = image.flatten(1).T.tolist()  # (places, channels)
    q, k, v = (
        [_affine(layer, x) for x in places]
        for layer in (attention.query, attention.key, attention.value)
    )
    counts = _softmax(_affine(attention.place, image.flatten().tolist()))
    given = []
    for i, x in enumerate(places):
        scores = [sum(a * b for a, b in zip(q[i], key, strict=True)) for key in k]
        looks = _softmax(scores)
        seen = [
            sum(share * value[c] for share, value in zip(looks, v, strict=True))
            for c in range(CHANNELS // 2)
        ]
        added = _affine(attention.back, seen)
        given.append([a + counts[i] * b for a, b in zip(x, added, strict=True)])
    return given


def test_modulated_attention__agrees_with_the_loop() -> None:
    attention = _attention()
    images = torch.randn(3, CHANNELS, HEIGHT, WIDTH, dtype=torch.float64)
    expected = torch.tensor(
        [_reference(attention, image) for image in images], dtype=torch.float64
    )
    given = attention(images).flatten(2).mT  # (N, places, channels)
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)


def test_modulated_attention__gradient_agrees_with_numerical_differentiation() -> None:
    x = torch.randn(2, CHANNELS, HEIGHT, WIDTH, dtype=torch.float64)
    assert torch.autograd.gradcheck(_attention(), x.requires_grad_())


def test_modulated_attention__maps_of_another_size() -> None:
    with pytest.raises(ValueError, match="maps") as error:
        _attention()(torch.zeros(1, CHANNELS, 3, 3, dtype=torch.float64))
    assert str(error.value) == (
        "images must give maps of 2 × 3, since OLTR's attention was made for them, but "
        "give 3 × 3. Resize them to the size of the training images."
    )


def test_oltr__network_has_the_published_parameters() -> None:
    """On 512 maps of 7 × 7: 3 (512·256 + 256) + 256·512 + (49·512·49 + 49)."""
    plain = build_backbone("timm:resnet18", image_size=224)
    num_plain = num_parameters(plain)
    backbone = OLTR().branch(plain)
    assert isinstance(backbone, AttentiveBackbone)
    assert num_parameters(backbone.attention) == 1_754_417
    assert num_parameters(backbone.layer) == 512 * 512 + 512
    assert num_parameters(backbone.trunk) == num_plain
    assert backbone.feature_dim == 512


def test_attentive_backbone__adds_nothing_until_it_is_trained() -> None:
    """Its layer reads the features that the backbone itself gives."""
    plain = DigitsNet()
    backbone, images = AttentiveBackbone(plain, 7), torch.randn(5, 1, 8, 8)
    assert plain.layers[1].num_batches_tracked == 0  # by the look at its maps
    expected = backbone.layer(plain.eval()(images)).relu()
    torch.testing.assert_close(backbone.eval()(images), expected)
    nn.init.normal_(backbone.attention.back.weight)
    assert not torch.allclose(backbone(images), expected)
