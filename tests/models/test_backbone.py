import pytest
import torch

from tailshift.models import MODELS, num_parameters


@pytest.mark.parametrize("name", MODELS.names())
def test_models__say_what_they_are_meant_for(name: str) -> None:
    build = MODELS.get(name)
    size = build.image_size
    backbone = build(build.in_channels)
    features = backbone(torch.randn(2, build.in_channels, size, size))
    assert features.shape == (2, backbone.feature_dim)
    assert MODELS.sentence(name).endswith(".")


def test_num_parameters__leaves_frozen_ones_out() -> None:
    layer = torch.nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    assert num_parameters(layer) == 6
