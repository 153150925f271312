import pytest
import timm
import torch
from torch import nn

from tailshift.models import TimmBackbone, build_model
from tailshift.models.timm_backbone import (
    _feature_dim,
    check_timm_name,
    is_timm_model,
)


def test_timm_backbone__features_and_channels() -> None:
    backbone = TimmBackbone("test_resnet", in_channels=1).eval()
    with torch.no_grad():
        features = backbone(torch.randn(2, 1, 64, 64))
    assert features.shape == (2, backbone.feature_dim)


def test_timm_backbone__is_left_in_training_mode() -> None:
    backbone = TimmBackbone("test_resnet")
    assert all(module.training for module in backbone.modules())


def test_timm_backbone__probing_leaves_batch_statistics_alone() -> None:
    buffers = dict(TimmBackbone("test_resnet").named_buffers())
    counts = [v for k, v in buffers.items() if k.endswith("num_batches_tracked")]
    assert counts
    assert not any(counts)


def test_timm_backbone__counts_layers_after_the_pool() -> None:
    """MobileNetV3's `num_features` is 288, its last hidden layer 1024."""
    assert TimmBackbone("mobilenetv3_small_050").feature_dim == 1024


def test_timm_backbone__fixed_size_model_takes_the_image_size() -> None:
    backbone = TimmBackbone("test_vit", image_size=32).eval()
    with torch.no_grad():
        assert backbone(torch.randn(1, 3, 32, 32)).shape == (1, backbone.feature_dim)


def test_timm_backbone__model_registered_without_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: None)
    assert TimmBackbone("test_resnet").feature_dim == 96


def test_timm_backbone__features_are_no_vector() -> None:
    with pytest.raises(ValueError, match="features of shape") as error:
        _feature_dim(nn.Identity(), "unpooled", torch.zeros(1, 3, 4, 4))
    assert str(error.value) == (
        "timm model 'unpooled' gives features of shape (1, 3, 4, 4) for one image, "
        "but a backbone gives one vector. Take a classification model."
    )


def test_build_model__timm() -> None:
    model = build_model("timm:test_resnet", num_classes=7).eval()
    with torch.no_grad():
        assert model(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_is_timm_model__with_and_without_tag() -> None:
    assert is_timm_model("resnet50")
    assert is_timm_model("resnet50.a1_in1k")
    assert not is_timm_model("resnet50.a1_in2k")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", "unknown timm model 'resnet5'; did you mean 'resnet50'?"),
        (
            "resnet50.a1_in2k",
            "unknown timm model 'resnet50.a1_in2k'; did you mean 'resnet50.a1_in1k'?",
        ),
        ("%", "unknown timm model '%'; timm.list_models() gives all names."),
    ],
)
def test_check_timm_name__unknown(name: str, message: str) -> None:
    with pytest.raises(ValueError, match="unknown timm model") as error:
        check_timm_name(name)
    assert str(error.value) == message
