from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from tailshift.models import Classifier, TimmBackbone, layer_rates
from tailshift.models import timm_backbone as module
from tailshift.models.timm_backbone import (
    Pretrained,
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
        "but a backbone gives one vector. Use a classification model."
    )


def _without_network(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let timm build models, but fetch no weights."""
    create = timm.create_model

    def create_model(name: str, *, pretrained: bool, **settings: Any) -> Any:
        if pretrained:
            raise error
        return create(name, pretrained=False, **settings)

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr(module, "hub_is_reachable", lambda: True)


NO_NETWORK = OSError("no route to host\nand more on it")
NO_WEIGHTS = RuntimeError("No pretrained weights exist for test_resnet.")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NO_NETWORK, "no route to host"),
        (NO_WEIGHTS, "No pretrained weights exist for test_resnet."),
        (OSError(), "OSError"),
    ],
)
def test_timm_backbone__without_weights_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    _without_network(monkeypatch, error)
    with pytest.warns(UserWarning, match="from scratch") as warned:
        backbone = TimmBackbone("test_resnet", pretrained="if_available")
    assert [str(warning.message) for warning in warned] == [
        "the published weights of timm model 'test_resnet' cannot be fetched "
        f"({reason}); training from scratch."
    ]
    assert backbone.feature_dim == 96


def test_timm_backbone__says_at_once_that_there_is_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With timm's own way to the weights, which would ask for a minute."""
    monkeypatch.setattr(module, "hub_is_reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.warns(UserWarning, match="from scratch") as warned:
        TimmBackbone("test_resnet", pretrained="if_available")
    assert [str(warning.message) for warning in warned] == [
        "the published weights of timm model 'test_resnet' cannot be fetched "
        "(huggingface.co cannot be reached); training from scratch."
    ]


def test_timm_backbone__weights_asked_for_but_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _without_network(monkeypatch, NO_NETWORK)
    with pytest.raises(OSError, match="published weights") as error:
        TimmBackbone("test_resnet", pretrained=True)
    assert str(error.value) == (
        "the published weights of timm model 'test_resnet' cannot be fetched (no "
        "route to host). Name a file with model.weights, or train from scratch "
        "with model.pretrained=false."
    )


@pytest.mark.parametrize("pretrained", [True, "if_available"])
def test_timm_backbone__takes_published_weights(
    monkeypatch: pytest.MonkeyPatch, pretrained: Pretrained
) -> None:
    create, asked = timm.create_model, []

    def create_model(name: str, *, pretrained: bool, **settings: Any) -> Any:
        asked.append(pretrained)
        return create(name, pretrained=False, **settings)

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr(module, "hub_is_reachable", lambda: True)
    TimmBackbone("test_resnet", pretrained=pretrained)
    assert asked == [True]


def test_classifier__timm(linear_model: Callable[..., Classifier]) -> None:
    model = linear_model("timm:test_resnet", 7).eval()
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


def test_layer_rates__timm_does_not_know_the_layers() -> None:
    with pytest.raises(ValueError, match="layers") as error:
        layer_rates(TimmBackbone("pit_ti_224"), 0.5)
    assert str(error.value) == (
        "`optim.layer_decay` must be 1, since timm does not know the layers of "
        "PoolingVisionTransformer, but is 0.5."
    )
