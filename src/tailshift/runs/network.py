"""The network of a configuration, as one of its method's stages has it."""

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
    """Return the classifier of a stage, not trained yet.

    Args:
        config: Names the backbone and the method.
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width of the images.
        stage: Whose head it gets.
        is_filled: Whether the weights will come from a run; otherwise the backbone
            starts from those that ``model`` names, if any.
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
    """Return the backbone that a configuration names, with the weights it names.

    Args:
        model: Names the backbone, its weights, and whether it keeps them.
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


COSINE_SCALE = 25.0
"""Largest logit of ``model.head = "cosine"``: LIFT's."""


def stage_head(
    config: RunConfig, stage: int, feature_dim: int, num_classes: int
) -> Head:
    """Return the fresh head of a stage: the method's, or cosines in place of it.

    Args:
        config: Names the method and the head.
        stage: Number of the stage.
        feature_dim: Length of the feature vector.
        num_classes: Number of logits.
    """
    if config.model.head == "cosine":
        return CosineHead(feature_dim, num_classes, scale=COSINE_SCALE)
    return config.method.stages()[stage].head(feature_dim, num_classes)


def thaw(frozen: FrozenBackbone, config: RunConfig, num_classes: int) -> Backbone:
    """Return a frozen backbone as one that is trained, with adapters if any.

    Args:
        frozen: Backbone of a run on features.
        config: Names the adapters.
        num_classes: Decides their size.
    """
    adapter = config.model.adapter
    backbone = add_adapters(frozen.backbone, adapter, num_classes)
    return ResizedBackbone(backbone, frozen.size) if frozen.size else backbone


def use_channels_last(model: Classifier, config: RunConfig) -> None:
    """Keep a pixel's channels side by side, if it is asked for."""
    if config.train.channels_last and not config.train.shard:
        model.to(memory_format=torch.channels_last)


def place_head(model: Classifier, config: RunConfig, stage: int) -> None:
    """Give a model the fresh head of a stage, on the model's device."""
    num_classes = model.head.num_classes
    head = stage_head(config, stage, model.backbone.feature_dim, num_classes)
    example = next(model.parameters())
    model.head = head.to(example.device, example.dtype)


def freeze(
    model: nn.Module, frozen: Sequence[str], fixed: Sequence[str] = ()
) -> tuple[nn.Module, ...]:
    """Take the named parts, and no others, out of training.

    Args:
        model: The network.
        frozen: Parts that keep weights and batch statistics.
        fixed: Parts that keep their weights; their statistics move.

    Returns:
        The frozen ones, which the trainer keeps in evaluation mode.
    """
    model.requires_grad_(True)  # the stage before may have frozen others
    for name in (*frozen, *fixed):
        model.get_submodule(name).requires_grad_(False)
    return tuple(model.get_submodule(name) for name in frozen)


def train_adapters(model: nn.Module) -> None:
    """Let the adapters of a frozen backbone be trained."""
    for part in model.modules():
        if isinstance(part, Adapter):
            part.requires_grad_(True)
