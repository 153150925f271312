"""A classifier: a backbone and a head, built by name, filled from a weight file."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tailshift.models import pretrained, timm_backbone
from tailshift.models.backbone import MODELS, Backbone
from tailshift.models.heads import Head
from tailshift.storage import read_tensors

AUTO = "auto"
"""The name of whichever model suits the images' size."""

MOST_SMALL = 64
"""Pixels, up to which images are small: an ImageNet stem would leave little of them."""

_NUM_STAND_INS = 2
"""Blank images that are read for none; BBN's two branches read one each."""


def of_any_batch(module: nn.Module, images: Tensor) -> Tensor:
    """Return what a module gives for images, (N, …), where N may be 0.

    Few modules take no image at all. If N is 0, blank ones are read, and their rows
    dropped: the result has no rows, and all parameters have the gradient 0.

    Args:
        module: Takes images (N, c, H, W).
        images: Shape (N, c, H, W).

    Example:
        >>> import torch
        >>> module = nn.Conv2d(3, 8, 3)
        >>> of_any_batch(module, torch.zeros(0, 3, 4, 4)).shape
        torch.Size([0, 8, 2, 2])
    """
    if len(images):
        given: Tensor = module(images)
        return given
    stand_ins = images.new_zeros(_NUM_STAND_INS, *images.shape[1:])
    none: Tensor = module(stand_ins)[:0]
    return none


def over_views(module: nn.Module, images: Tensor) -> Tensor:
    """Return what a module gives for images, the mean of several views of each.

    Args:
        module: Takes images (N, c, H, W).
        images: Shape (N, c, H, W), or (N, views, c, H, W); N may be 0.

    Example:
        >>> over_views(nn.Flatten(), torch.tensor([[[[[1.0]]], [[[3.0]]]]])).tolist()
        [[2.0]]
    """
    if images.ndim == 4 or images.ndim == 2:  # a bank's features have no views
        return of_any_batch(module, images)
    views = [of_any_batch(module, view) for view in images.unbind(1)]
    return torch.stack(views).mean(0)


class Classifier(nn.Module):
    """Images (N, c, H, W) in, logits (N, C) out: a head on a backbone's features.

    Args:
        backbone: Gives ``backbone.feature_dim`` features per image.
        head: Takes as many, gives one logit for each class.
        log_posteriors: Makes the head's logits the log posteriors that the network
            gives outside training; by default they are.

    Example:
        >>> import torch
        >>> from tailshift.models import DigitsNet, LinearHead
        >>> model = Classifier(DigitsNet(), LinearHead(128, 10))
        >>> model(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        log_posteriors: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if backbone.feature_dim != head.feature_dim:
            raise ValueError(
                f"`head` takes {head.feature_dim} features "
                f"but `backbone` gives {backbone.feature_dim}."
            )
        self.backbone = backbone
        self.head = head
        self.log_posteriors = log_posteriors

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `images`, shape (N, c, H, W).

        In training they are those of the loss, and N may be 0, as it is on one of
        several processes at times.
        """
        if self.training:
            features = of_any_batch(self.backbone, images)
        else:
            features = self.backbone(images)
        logits: Tensor = self.head(features)
        if self.training or self.log_posteriors is None:
            return logits
        return self.log_posteriors(logits)


def build_backbone(
    name: str,
    *,
    in_channels: int = 3,
    image_size: int | None = None,
    pretrained: timm_backbone.Pretrained = False,
) -> Backbone:
    """Return the named backbone.

    Args:
        name: One of ``MODELS``, or ``timm:NAME``.
        in_channels: Channels of the images.
        image_size: Height and width of the images, for timm models of fixed size.
        pretrained: Start a timm backbone from its published weights;
            ``"if_available"`` starts without them if they cannot be fetched.

    Example:
        >>> build_backbone("resnet32_two_branch").feature_dim
        128
    """
    if in_channels < 1:
        raise ValueError(f"`in_channels` must be >= 1, but is {in_channels}.")
    check_model_name(name)
    if name == AUTO:
        name = suitable_model(image_size)
    if name.startswith(timm_backbone.PREFIX):
        return timm_backbone.TimmBackbone(
            name.removeprefix(timm_backbone.PREFIX),
            in_channels=in_channels,
            image_size=image_size,
            pretrained=pretrained,
        )
    if pretrained is True:
        raise ValueError(
            f"`pretrained` weights exist for timm models only, but `name` is {name!r}. "
            "Drop `pretrained`, or use a model such as 'timm:resnet50'."
        )
    backbone = MODELS.get(name)(in_channels)
    backbone.in_channels = in_channels
    backbone.image_size = image_size or backbone.image_size
    return backbone


def suitable_model(image_size: int | None) -> str:
    """Return the model that ``auto`` stands for.

    Example:
        >>> suitable_model(32), suitable_model(224)
        ('resnet32', 'timm:resnet18')
    """
    is_small = image_size is not None and image_size <= MOST_SMALL
    return "resnet32" if is_small else f"{timm_backbone.PREFIX}resnet18"


def check_model_name(name: str) -> None:
    """Raise a ValueError with the nearest name unless `name` can be built.

    Example:
        >>> check_model_name("resnet50")
        Traceback (most recent call last):
        ...
        ValueError: unknown model 'resnet50'; did you mean 'timm:resnet50'?
    """
    if name.startswith(timm_backbone.PREFIX):
        timm_backbone.check_timm_name(name.removeprefix(timm_backbone.PREFIX))
    elif name not in (*MODELS, AUTO) and timm_backbone.is_timm_model(name):
        raise ValueError(
            f"unknown model {name!r}; did you mean '{timm_backbone.PREFIX}{name}'?"
        )
    elif name != AUTO:
        MODELS.get(name)


def load_backbone_weights(backbone: Backbone, weights: str | Path) -> None:
    """Fill a backbone from a file or from installed weights; skips a classifier.

    Args:
        backbone: Filled in place.
        weights: ``weights.safetensors`` of a run, timm's published file, a file of
            tensors by PyTorch, or a name of :data:`~tailshift.models.PUBLISHED`.
    """
    if str(weights) in pretrained.PUBLISHED:
        if not isinstance(backbone, timm_backbone.TimmBackbone):
            raise ValueError(
                f"the weights {weights!r} are those of a timm network, but "
                f"`model.name` is a {type(backbone).__name__}."
            )
        own = pretrained.read_published(str(weights), backbone.model)
        backbone.model.load_state_dict(own, strict=False)
        return
    path = Path(weights).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no weights file {path}.")
    tensors = _read_weights(path)
    own = _of_backbone(tensors, isinstance(backbone, timm_backbone.TimmBackbone))
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
    backbone.is_pretrained = True


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return a file's tensors; of a pickle nothing but tensors is unpickled."""
    if path.suffix not in (".pt", ".pth", ".bin"):
        return read_tensors(path).tensors
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a strange file may raise almost anything
        raise ValueError(
            f"{path} must hold tensors alone, but cannot be read as such "
            f"({str(error).splitlines()[0]})."
        ) from None
    stored = stored.get("state_dict", stored) if isinstance(stored, dict) else {}
    return {key: value for key, value in stored.items() if isinstance(value, Tensor)}


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
