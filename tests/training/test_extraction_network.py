"""Networks that give features."""

from typing import Any

import torch
from torch import nn

from tailshift.models import TimmBackbone
from tailshift.training.extraction_network import folded, weights_fingerprint


def test_folded__gives_the_same_features_without_normalisation() -> None:
    torch.manual_seed(0)
    network = TimmBackbone("test_efficientnet")
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn_like(module.running_mean)
            module.running_var = torch.rand_like(module.running_var) + 0.1
    before = weights_fingerprint(network)
    images = torch.randn(3, 3, 64, 64)
    given = folded(network, 64)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in given.modules())
    assert torch.allclose(given(images), network.eval()(images), rtol=1e-3, atol=1e-4)
    assert weights_fingerprint(network) == before


class OtherOrder(nn.Module):
    """Its normalisation stands after the convolution, and runs before it."""

    feature_dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.norm.running_mean = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(images)).mean(dim=(2, 3))


def test_folded__leaves_a_network_of_another_order_as_it_is() -> None:
    network: Any = OtherOrder().eval()
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(folded(network, 8)(images), network(images))
