"""Any model of timm as a backbone, by name: ``timm:resnet50``."""

import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from tailshift.models import backbone
from tailshift.registry import did_you_mean


def _hub_host() -> str:
    """Return the name of the machine that weights are fetched from."""
    from huggingface_hub import constants  # here: needed only to fetch weights

    return urlsplit(constants.ENDPOINT).hostname or constants.ENDPOINT


def hub_is_reachable() -> bool:
    """Return whether this machine knows the way to the Hub: its address, or a proxy."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(_hub_host(), 443)
    except OSError:
        return False
    return True


@contextmanager
def offline_hub() -> Iterator[None]:
    """Within the block, take only what was fetched before."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


PREFIX = "timm:"

_RESNET_PARTS = {"conv1", "bn1", "act1", "maxpool", "layer3", "layer4", "global_pool"}
"""What a network of timm's ResNet family is made of, among others."""

Pretrained: TypeAlias = bool | Literal["if_available"]
"""Whether to start from published weights; ``"if_available"`` does without them."""


class TimmBackbone(backbone.Backbone):
    """A timm model without its classifier, pooled to one vector per image.

    Args:
        name: timm's name, with or without a weights tag: ``"resnet50"``,
            ``"resnet50.a1_in1k"``.
        in_channels: Channels of the images.
        image_size: Height and width of the images. Needed only by models of fixed
            size (vision transformers), which are otherwise built for their own.
        pretrained: Start from timm's weights, which are downloaded once;
            ``"if_available"`` warns if they cannot be fetched, and starts without.

    Example:
        >>> TimmBackbone("test_resnet").feature_dim
        96
    """

    def __init__(
        self,
        name: str,
        *,
        in_channels: int = 3,
        image_size: int | None = None,
        pretrained: Pretrained = False,
    ) -> None:
        super().__init__()
        check_timm_name(name)
        import timm  # here: it takes seconds, and most runs do without

        config = timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
        settings: dict[str, Any] = {}
        if image_size is not None and config.fixed_input_size:
            settings["img_size"] = image_size
        settings |= {"in_chans": in_channels, "num_classes": 0}
        self.in_channels = in_channels
        self.image_size = image_size or _probe_size(config, None)[0]
        self.model, self.is_pretrained = _create_model(name, pretrained, settings)
        probe = torch.zeros(1, in_channels, *_probe_size(config, image_size))
        self.feature_dim = _feature_dim(self.model, name, probe)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, shape (N, feature_dim), of `images`, (N, c, H, W)."""
        features: Tensor = self.model(images)
        return features

    def split(
        self, at: backbone.TailPart, num_tails: int = 1
    ) -> backbone.SplitBackbone:
        """Return the parts of a ResNet, whose stages are timm's ``layer1`` to 4."""
        parts = dict(self.model.named_children())
        if not parts.keys() >= _RESNET_PARTS:
            return super().split(at, num_tails)
        stages = [parts[f"layer{k}"] for k in (1, 2, 3)] + [*parts["layer4"].children()]
        first = {
            "last_two_stages": 2,
            "last_block": len(stages) - 1,
            "pooling": len(stages),
        }[at]
        stem = (parts[name] for name in ("conv1", "bn1", "act1", "maxpool"))
        trunk = nn.Sequential(*stem, *stages[:first])
        tail = nn.Sequential(*stages[first:], parts["global_pool"])
        return backbone.SplitBackbone(
            trunk, self.several(tail, num_tails), self.feature_dim
        )

    def initialise(self, part: nn.Module) -> None:
        """Draw the convolutions of a part of a ResNet anew, as timm does."""
        backbone.initialise_convolutions(part, "fan_out")


def _create_model(
    name: str, pretrained: Pretrained, settings: dict[str, Any]
) -> tuple[nn.Module, bool]:
    """Return the model, and whether it has its published weights."""
    import timm

    if pretrained:
        is_online = hub_is_reachable()
        try:
            with nullcontext() if is_online else offline_hub():
                return timm.create_model(name, pretrained=True, **settings), True
        except (OSError, RuntimeError) as error:
            cause = str(error).strip() or type(error).__name__
            if not is_online:
                cause = f"{_hub_host()} cannot be reached"
            reason = (
                f"the published weights of timm model {name!r} cannot be fetched "
                f"({cause.splitlines()[0]})"
            )
        if pretrained != "if_available":
            raise OSError(
                f"{reason}. Name a file with model.weights, or train from scratch "
                "with model.pretrained=false."
            )
        warnings.warn(f"{reason}; training from scratch.", stacklevel=2)
    return timm.create_model(name, pretrained=False, **settings), False


def is_timm_model(name: str) -> bool:
    """Return whether timm knows `name`, with or without a weights tag.

    Example:
        >>> is_timm_model("resnet50"), is_timm_model("resnet5")
        (True, False)
    """
    return name in _timm_names()


def check_timm_name(name: str) -> None:
    """Raise a ValueError with the nearest name unless timm knows `name`."""
    known = _timm_names()
    if name not in known:
        hint = did_you_mean(name, known) or "; timm.list_models() gives all names."
        raise ValueError(f"unknown timm model {name!r}{hint}")


@cache  # timm sorts all of its names anew
def _timm_names() -> list[str]:
    import timm

    return [*timm.list_models(), *timm.list_pretrained()]


def _probe_size(config: Any, image_size: int | None) -> tuple[int, int]:
    if image_size is not None and config.fixed_input_size:
        return image_size, image_size
    _, height, width = config.input_size
    return height, width


@torch.no_grad()
def _feature_dim(model: torch.nn.Module, name: str, probe: Tensor) -> int:
    # Measured: timm's `num_features` misses layers between pooling and classifier.
    was_training = model.training
    features = model.eval()(probe)
    model.train(was_training)
    if features.ndim != 2:
        raise ValueError(
            f"timm model {name!r} gives features of shape {tuple(features.shape)} for "
            "one image, but a backbone gives one vector. Use a classification model."
        )
    return int(features.shape[1])


class LayerRate(NamedTuple):
    """How fast a parameter learns beside the head, and whether it decays."""

    scale: float
    """Factor of the head's learning rate."""
    decays: bool
    """Whether its weights decay with AdamW."""


def layer_rates(backbone: nn.Module, layer_decay: float) -> dict[int, LayerRate]:
    r"""Return the rates of a timm network's parameters, by their ``id``.

    A parameter of layer :math:`l` of :math:`L`, as timm counts them, has the factor
    :math:`d^{L - l}`; the head is layer :math:`L`.

    Args:
        backbone: Has a :class:`TimmBackbone` in it; otherwise nothing is returned.
        layer_decay: :math:`d`, in (0, 1].

    Example:
        >>> rates = layer_rates(TimmBackbone("test_vit"), 0.5)
        >>> sorted({rate.scale for rate in rates.values()})[-2:]
        [0.25, 0.5]
    """
    found = [part for part in backbone.modules() if isinstance(part, TimmBackbone)]
    if not found:
        return {}
    model: Any = found[0].model
    spared: set[str] = getattr(model, "no_weight_decay", set)()
    depths = _depths(model, layer_decay) if layer_decay < 1 else {}
    return {
        id(parameter): LayerRate(
            layer_decay ** depths.get(name, 0),
            parameter.ndim > 1 and name not in spared,
        )
        for name, parameter in model.named_parameters()
    }


def _depths(model: Any, layer_decay: float) -> dict[str, int]:
    """Return how many layers each parameter lies below the classifier, by its name."""
    from timm.models import group_parameters  # here: it takes seconds

    if not hasattr(model, "group_matcher"):
        raise ValueError(
            "`optim.layer_decay` must be 1, since timm does not know the layers of "
            f"{type(model).__name__}, but is {layer_decay:g}."
        )
    head = model.pretrained_cfg.get("classifier") or "head"
    head = f"{head if isinstance(head, str) else head[0]}.weight"  # some have two
    named = [*model.named_parameters(), (head, None)]
    whole: Any = SimpleNamespace(named_parameters=lambda: named)  # as with a classifier
    matcher = model.group_matcher(coarse=False)
    layers = group_parameters(whole, matcher, reverse=True)
    return {name: layers[head] - layer for name, layer in layers.items()}
