"""The network that gives features: without normalisation, in evaluation mode."""

import copy
import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tailshift.models import Backbone


def weights_fingerprint(backbone: Backbone) -> str:
    """Return 16 hex digits that tell a network's weights from others."""
    digest = hashlib.sha256()
    for name, tensor in backbone.state_dict().items():
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def folded(backbone: Backbone, image_size: int) -> nn.Module:
    """Return a copy of a network with its batch normalisation in its convolutions.

    In float32 it gives the same features in two thirds of the time. bf16 would be as
    fast again, but moves features by several percent, and with them what a head that
    was trained on them answers for images.

    Args:
        backbone: It is left as it is.
        image_size: Height and width of its images.
    """
    network = copy.deepcopy(backbone).eval()
    shape = (2, 3, image_size, image_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = network(images)
    whole = copy.deepcopy(network)
    for module in list(network.modules()):
        _fold_children(module)
    with torch.inference_mode():
        is_same = torch.allclose(network(images), expected, rtol=1e-3, atol=1e-4)
    return network if is_same else whole  # modules may run in another order


def _fold_children(module: nn.Module) -> None:
    """Fold each normalisation that follows a convolution into it, in place."""
    parts = list(module.named_children())
    for (_, first), (name, second) in pairwise(parts):
        if not (isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d)):
            continue
        after = [getattr(second, part, nn.Identity()) for part in ("drop", "act")]
        folded_pair = fuse_conv_bn_eval(first, second)
        first.weight, first.bias = folded_pair.weight, folded_pair.bias
        setattr(module, name, nn.Sequential(*after))


@torch.inference_mode()
def embed(network: nn.Module, images: Tensor) -> "np.ndarray[Any, np.dtype[Any]]":
    """Return the features of images, float32.

    Half precision would do for most networks, but not if a feature varies by less than
    a hundredth of its mean: what is lost there, a head that was fitted to it amplifies.
    """
    given: Tensor = network(images.contiguous(memory_format=torch.channels_last))
    return given.numpy()


def check_finite(features: Any, ids: Any, name: str) -> None:
    """Raise FloatingPointError if features of a batch are not finite."""
    if not np.isfinite(features).all():
        row = int(ids[(~np.isfinite(features)).any(axis=1).argmax()])
        raise FloatingPointError(
            f"the features of image {row} of the {name} split are not finite. Other "
            "weights are needed."
        )
