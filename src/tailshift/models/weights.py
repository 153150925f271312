"""Backbone weights from a file: of a run of ours, or of timm."""

from pathlib import Path

from torch import Tensor

from tailshift.models.backbone import Backbone
from tailshift.models.timm_backbone import TimmBackbone
from tailshift.tensor_file import read_tensors


def load_backbone_weights(backbone: Backbone, path: Path) -> None:
    """Fill a backbone from a safetensors file; a classifier in it is left out.

    Args:
        backbone: Filled in place.
        path: ``weights.safetensors`` of a run, or timm's published file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no weights file {path}.")
    tensors = read_tensors(path).tensors
    own = _of_backbone(tensors, isinstance(backbone, TimmBackbone))
    for name, wanted in backbone.state_dict().items():
        if name not in own:
            raise ValueError(
                f"{path} holds the weights of another network: it has no {name}."
            )
        if own[name].shape != wanted.shape:
            raise ValueError(
                f"{path} holds the weights of another network: {name} has shape "
                f"{tuple(own[name].shape)} there and {tuple(wanted.shape)} here."
            )
    backbone.load_state_dict(own, strict=False)


def _of_backbone(tensors: dict[str, Tensor], is_timm: bool) -> dict[str, Tensor]:
    """Return the backbone's tensors under the names they have here."""
    prefix = "backbone."
    if any(name.startswith(prefix) for name in tensors):
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
    if is_timm:
        return {f"model.{name}": tensor for name, tensor in tensors.items()}
    return tensors
