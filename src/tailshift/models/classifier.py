"""A classifier: a backbone and a head, built by name."""

from torch import Tensor, nn

from tailshift.models.backbone import MODELS, Backbone
from tailshift.models.empty_batch import of_any_batch
from tailshift.models.heads import Head, build_head
from tailshift.models.timm_backbone import (
    PREFIX,
    Pretrained,
    TimmBackbone,
    check_timm_name,
    is_timm_model,
)


class Classifier(nn.Module):
    """Images (N, c, H, W) in, logits (N, C) out: a head on a backbone's features.

    Args:
        backbone: Gives ``backbone.feature_dim`` features an image.
        head: Takes as many, gives one logit for each class.

    Example:
        >>> import torch
        >>> model = build_model("digits_net", num_classes=10, in_channels=1)
        >>> model(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        if backbone.feature_dim != head.feature_dim:
            raise ValueError(
                f"`head` takes {head.feature_dim} features "
                f"but `backbone` gives {backbone.feature_dim}."
            )
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (N, C), of `images`, shape (N, c, H, W).

        In training N may be 0, as it is on one of several processes at times.
        """
        if self.training:
            features = of_any_batch(self.backbone, images)
        else:
            features = self.backbone(images)
        logits: Tensor = self.head(features)
        return logits


def build_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    image_size: int | None = None,
    head: str = "linear",
    pretrained: Pretrained = False,
) -> Classifier:
    """Return a classifier of the named backbone and head.

    Args:
        name: One of ``MODELS``, or ``timm:NAME``.
        num_classes: Number of logits, at least 2.
        in_channels: Channels of the images.
        image_size: Height and width of the images, for timm models of fixed size.
        head: One of ``HEADS``.
        pretrained: Start a timm backbone from its published weights;
            ``"if_available"`` goes on without them where they cannot be had.
    """
    backbone = build_backbone(
        name, in_channels=in_channels, image_size=image_size, pretrained=pretrained
    )
    return Classifier(
        backbone,
        build_head(head, feature_dim=backbone.feature_dim, num_classes=num_classes),
    )


def build_backbone(
    name: str,
    *,
    in_channels: int = 3,
    image_size: int | None = None,
    pretrained: Pretrained = False,
) -> Backbone:
    """Return the named backbone; the arguments are those of :func:`build_model`.

    Example:
        >>> build_backbone("resnet32_two_branch").feature_dim
        128
    """
    if in_channels < 1:
        raise ValueError(f"`in_channels` must be >= 1, but is {in_channels}.")
    check_model_name(name)
    if name.startswith(PREFIX):
        return TimmBackbone(
            name.removeprefix(PREFIX),
            in_channels=in_channels,
            image_size=image_size,
            pretrained=pretrained,
        )
    if pretrained:
        raise ValueError(
            f"`pretrained` weights exist for timm models only, but `name` is {name!r}. "
            "Leave `pretrained` out, or take a model such as 'timm:resnet50'."
        )
    return MODELS.get(name).build(in_channels)


def check_model_name(name: str) -> None:
    """Raise a ValueError with the nearest name unless `name` can be built.

    Example:
        >>> check_model_name("resnet50")
        Traceback (most recent call last):
        ...
        ValueError: unknown model 'resnet50'; did you mean 'timm:resnet50'?
    """
    if name.startswith(PREFIX):
        check_timm_name(name.removeprefix(PREFIX))
    elif name not in MODELS and is_timm_model(name):
        raise ValueError(f"unknown model {name!r}; did you mean '{PREFIX}{name}'?")
    else:
        MODELS.get(name)
