from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tailshift.models import Classifier, ResNet32, TwoBranchResNet32, num_parameters
from tailshift.models.resnet32 import BasicBlock, shortcut_a


def test_shortcut_a__worked_example() -> None:
    """Pixels 0 and 2 of each side stay; one zero channel before, one after."""
    x = torch.arange(32.0).reshape(1, 2, 4, 4)

    y = shortcut_a(x, out_channels=4, stride=2)

    zeros = [[0.0, 0.0], [0.0, 0.0]]
    first, second = [[0.0, 2.0], [8.0, 10.0]], [[16.0, 18.0], [24.0, 26.0]]
    assert y.tolist() == [[zeros, first, second, zeros]]


def test_shortcut_a__same_shape_is_identity() -> None:
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(shortcut_a(x, out_channels=4, stride=1), x)


def _reference_conv3x3(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    n, _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((n, len(weight), -(-height // stride), -(-width // stride)))
    for i in range(out.shape[2]):
        for j in range(out.shape[3]):
            window = padded[
                :, :, i * stride : i * stride + 3, j * stride : j * stride + 3
            ]
            out[:, :, i, j] = np.einsum("nchw,ochw->no", window, weight)
    return out


def _reference_batch_norm(x: np.ndarray) -> np.ndarray:
    """Training mode, weight 1 and bias 0: the state a block starts in."""
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=(0, 2, 3), keepdims=True) + 1e-5)


def _reference_block(x: Tensor, block: BasicBlock) -> np.ndarray:
    image = x.numpy()
    weight1, weight2 = (c.weight.detach().numpy() for c in (block.conv1, block.conv2))
    residual = _reference_conv3x3(image, weight1, block.stride)
    residual = np.maximum(_reference_batch_norm(residual), 0)
    residual = _reference_batch_norm(_reference_conv3x3(residual, weight2, 1))
    shortcut = np.zeros_like(residual)
    start = (residual.shape[1] - image.shape[1]) // 2
    shortcut[:, start : start + image.shape[1]] = image[
        :, :, :: block.stride, :: block.stride
    ]
    return np.maximum(residual + shortcut, 0)


@pytest.mark.parametrize(("out_channels", "stride"), [(4, 1), (8, 2)])
@pytest.mark.parametrize("side", [5, 6])
def test_basic_block__equals_reference(
    out_channels: int, stride: int, side: int
) -> None:
    block = BasicBlock(4, out_channels, stride).double()
    x = torch.randn(3, 4, side, side, dtype=torch.float64)
    np.testing.assert_allclose(
        block(x).detach().numpy(), _reference_block(x, block), rtol=1e-10, atol=1e-10
    )


def test_resnet32__parameters_of_the_literature(
    linear_model: Callable[..., Classifier],
) -> None:
    """He et al. (2016), Table 6: 0.46 M with ten classes."""
    assert num_parameters(linear_model("resnet32", 10)) == 464_154


def test_resnet32_two_branch__one_more_block_and_a_wider_head(
    linear_model: Callable[..., Classifier],
) -> None:
    """ResNet-32 plus two 3×3 convolutions of 64 × 64 and their batch norms."""
    model = linear_model("resnet32_two_branch", 100)
    block = 2 * (9 * 64 * 64) + 2 * (64 + 64)
    assert num_parameters(model) == num_parameters(ResNet32()) + block + 129 * 100


@pytest.mark.parametrize("kind", [ResNet32, TwoBranchResNet32])
def test_resnet32__has_31_convolutions_deep(kind: type[ResNet32]) -> None:
    """32 layers: 31 convolutions in a row and the classifier."""
    convolutions = [m for m in kind().modules() if isinstance(m, nn.Conv2d)]
    parallel = 2 if kind is TwoBranchResNet32 else 0
    assert len(convolutions) - parallel == 31


@pytest.mark.parametrize("kind", [ResNet32, TwoBranchResNet32])
def test_resnet32__kaiming_normal_convolutions(kind: type[ResNet32]) -> None:
    """Standard deviation sqrt(2 / fan-in); within 3 % for 36,864 weights."""
    for layer in kind().stage3.modules():
        if isinstance(layer, nn.Conv2d) and layer.in_channels == 64:
            assert layer.weight.std().item() == pytest.approx(
                (2 / (9 * 64)) ** 0.5, rel=0.03
            )


def test_two_branch__each_half_is_its_own_branch() -> None:
    """Both branches read the trunk; the first gives features 0 to 63."""
    net = TwoBranchResNet32().eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        x, features = net.trunk(images), net(images)
        first, second = net.branch1(x).mean((2, 3)), net.branch2(x).mean((2, 3))
    assert x.shape == (2, 64, 4, 4)
    torch.testing.assert_close(features, torch.cat([first, second], dim=1))


def test_two_branch__channels_last_gives_the_same_features() -> None:
    net = TwoBranchResNet32().double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        plain = net(images)
        net = net.to(memory_format=torch.channels_last)
        torch.testing.assert_close(
            net(images.to(memory_format=torch.channels_last)), plain
        )
