"""Build the network of a configuration, for each stage of its method."""

from collections.abc import Sequence

import torch
from torch import nn

from tailshift.config import ModelConfig, RunConfig
from tailshift.models import (
    Adapter,
    Backbone,
    Classifier,
    CosineHead,
    FrozenBackbone,
    Head,
    ResizedBackbone,
    add_adapters,
    build_backbone,
    load_backbone_weights,
)


def build_network(
    config: RunConfig,
    *,
    num_classes: int,
    in_channels: int,
    image_size: int,
    stage: int = 0,
    is_filled: bool = False,
) -> Classifier:
    """Return the untrained classifier of a stage.

    Args:
        config: Configuration with the backbone and the method.
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width of the images.
        stage: Number of the stage whose head is built.
        is_filled: Whether the weights will come from a run. Otherwise the backbone
            starts from the weights that ``model`` names, if any.
    """
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be >= 2, but is {num_classes}.")
    backbone = build_model_backbone(
        config.model,
        in_channels=in_channels,
        image_size=image_size,
        is_filled=is_filled,
    )
    backbone = config.method.branch(backbone)
    backbone = add_adapters(backbone, config.model.adapter, num_classes)
    head = stage_head(config, stage, backbone.feature_dim, num_classes)
    return Classifier(backbone, head, config.method.log_posteriors)


def build_model_backbone(
    model: ModelConfig,
    *,
    in_channels: int = 3,
    image_size: int,
    is_filled: bool = False,
) -> Backbone:
    """Return the backbone of a configuration with its initial weights.

    Args:
        model: Configuration with the backbone, its weights and whether it is frozen.
        in_channels: Channels of the images.
        image_size: Height and width of the images.
        is_filled: Whether the weights will come from elsewhere.
    """
    backbone = build_backbone(
        model.name,
        in_channels=in_channels,
        image_size=model.image_size or image_size,
        pretrained=False if is_filled or model.weights else model.pretrained,
    )
    if model.weights and not is_filled:
        load_backbone_weights(backbone, model.weights)
    if model.frozen and model.name != "features":
        return FrozenBackbone(backbone, model.image_size)
    return ResizedBackbone(backbone, model.image_size) if model.image_size else backbone


_COSINE_SCALE = 25.0
"""Scale of ``model.head = "cosine"``, from LIFT."""


def stage_head(
    config: RunConfig, stage: int, feature_dim: int, num_classes: int
) -> Head:
    """Return the untrained head of a stage: the method's, or a cosine classifier.

    Args:
        config: Names the method and the head.
        stage: Number of the stage.
        feature_dim: Length of the feature vector.
        num_classes: Number of logits.
    """
    if config.model.head == "cosine":
        return CosineHead(feature_dim, num_classes, scale=_COSINE_SCALE)
    return config.method.stages()[stage].head(feature_dim, num_classes)


def thaw(frozen: FrozenBackbone, config: RunConfig, num_classes: int) -> Backbone:
    """Return a frozen backbone as a trainable one, with adapters if configured.

    Args:
        frozen: Backbone of a run on features.
        config: Configuration with the adapters.
        num_classes: Number of classes, which decides the adapters' size.
    """
    adapter = config.model.adapter
    backbone = add_adapters(frozen.backbone, adapter, num_classes)
    return ResizedBackbone(backbone, frozen.size) if frozen.size else backbone


def use_channels_last(model: Classifier, config: RunConfig) -> None:
    """Use the channels-last memory format, if configured."""
    if config.train.channels_last and not config.train.shard:
        model.to(memory_format=torch.channels_last)


def place_head(model: Classifier, config: RunConfig, stage: int) -> None:
    """Give a model the untrained head of a stage, on the model's device."""
    num_classes = model.head.num_classes
    head = stage_head(config, stage, model.backbone.feature_dim, num_classes)
    example = next(model.parameters())
    model.head = head.to(example.device, example.dtype)


def freeze(
    model: nn.Module, frozen: Sequence[str], fixed: Sequence[str] = ()
) -> tuple[nn.Module, ...]:
    """Freeze the named parts and train all others.

    Args:
        model: Network.
        frozen: Parts that keep their weights and batch statistics.
        fixed: Parts that keep their weights but update their batch statistics.

    Returns:
        The frozen parts, which the trainer keeps in evaluation mode.
    """
    model.requires_grad_(True)  # the previous stage may have frozen others
    for name in (*frozen, *fixed):
        model.get_submodule(name).requires_grad_(False)
    return tuple(model.get_submodule(name) for name in frozen)


def train_adapters(model: nn.Module) -> None:
    """Make the adapters of a frozen backbone trainable."""
    for part in model.modules():
        if isinstance(part, Adapter):
            part.requires_grad_(True)
