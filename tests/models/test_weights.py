"""Backbone weights from files: of a run, of timm, and those that do not fit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from tailshift import Run
from tailshift.models import Classifier, build_backbone, load_backbone_weights
from tailshift.models.backbone import Backbone
from tailshift.runs.files import save_weights


def _state(backbone: Backbone) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in backbone.state_dict().items()}


def _save(path: Path, state: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return path


def _refused(backbone: Backbone, path: Path) -> str:
    """Return why a file is refused; the backbone must stay as it was."""
    before = _state(backbone)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load_backbone_weights(backbone, path)
    after = backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return str(error.value)


def test_load_backbone_weights__of_a_run(digits_run: Run) -> None:
    backbone = build_backbone("digits_net", in_channels=1)
    load_backbone_weights(backbone, digits_run.directory / "weights.safetensors")
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        features = backbone.eval()(images)
        assert torch.equal(features, digits_run.model.backbone(images))


def test_load_backbone_weights__of_a_run_with_a_timm_model(
    tmp_path: Path, linear_model: Callable[..., Classifier]
) -> None:
    """A head for another number of classes is left out."""
    trained = linear_model("timm:test_resnet", 7)
    save_weights(tmp_path / "weights.safetensors", trained)
    backbone = build_backbone("timm:test_resnet")
    load_backbone_weights(backbone, tmp_path / "weights.safetensors")
    wanted = trained.backbone.state_dict()
    assert all(torch.equal(wanted[k], v) for k, v in backbone.state_dict().items())


def test_load_backbone_weights__of_timm(tmp_path: Path) -> None:
    """As published: plain names, with a classifier of a thousand classes."""
    published = timm.create_model("test_resnet").state_dict()
    assert published["fc.weight"].shape[0] == 1000
    backbone = build_backbone("timm:test_resnet")
    load_backbone_weights(backbone, _save(tmp_path / "model.safetensors", published))
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, published[name.removeprefix("model.")])


def test_load_backbone_weights__plain_names_of_ours(tmp_path: Path) -> None:
    other, backbone = (build_backbone("digits_net") for _ in range(2))
    path = _save(tmp_path / "a.safetensors", other.state_dict())
    load_backbone_weights(backbone, path)
    wanted = other.state_dict()
    assert all(torch.equal(wanted[k], v) for k, v in backbone.state_dict().items())


def test_load_backbone_weights__another_network(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.safetensors", build_backbone("resnet32").state_dict())
    first = next(iter(build_backbone("digits_net").state_dict()))
    assert _refused(build_backbone("digits_net"), path) == (
        f"{path} holds the weights of another network: it has no {first}."
    )


def test_load_backbone_weights__another_shape(tmp_path: Path) -> None:
    grey = timm.create_model("test_resnet", in_chans=1).state_dict()
    path = _save(tmp_path / "grey.safetensors", grey)
    assert _refused(build_backbone("timm:test_resnet"), path) == (
        f"{path} holds the weights of another network: model.conv1.0.weight has shape "
        "(16, 1, 3, 3) there and (16, 3, 3, 3) here."
    )


def test_load_backbone_weights__no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.safetensors", tmp_path):
        assert _refused(build_backbone("digits_net"), path) == (
            f"there is no weights file {path}."
        )


def test_load_backbone_weights__damaged_file(tmp_path: Path) -> None:
    whole = _save(tmp_path / "a.safetensors", build_backbone("digits_net").state_dict())
    content = whole.read_bytes()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(content[: len(content) // 2])
    message = _refused(build_backbone("digits_net"), cut)
    assert message == (
        f"{cut} is not a whole safetensors file (Error while deserializing header: "
        "incomplete metadata, file not fully covered)."
    )
    cut.write_bytes(b"")
    assert _refused(build_backbone("digits_net"), cut) == (
        f"{cut} is not a whole safetensors file (Error while deserializing header: "
        "header too small)."
    )
