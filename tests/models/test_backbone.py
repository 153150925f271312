import pytest
import torch

from tailshift.models import MODELS, num_parameters


@pytest.mark.parametrize("name", MODELS.names())
def test_model_info__agrees_with_the_model(name: str) -> None:
    info = MODELS.get(name)
    backbone = info.build(info.in_channels)
    size = info.image_size
    features = backbone(torch.randn(2, info.in_channels, size, size))
    assert features.shape == (2, info.feature_dim)
    assert backbone.feature_dim == info.feature_dim
    assert info.num_parameters == num_parameters(backbone)
    assert info.sentence.endswith(".")


def test_num_parameters__leaves_frozen_ones_out() -> None:
    layer = torch.nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    assert num_parameters(layer) == 6
