"""The network of a configuration, as one of its method's stages has it."""

from pathlib import Path

from torch import nn

from tailshift.config import RunConfig
from tailshift.models import Classifier, build_backbone, load_backbone_weights


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
    model = config.model
    backbone = build_backbone(
        model.name,
        in_channels=in_channels,
        image_size=image_size,
        pretrained=False if is_filled or model.weights else model.pretrained,
    )
    if model.weights and not is_filled:
        load_backbone_weights(backbone, Path(model.weights).expanduser())
    backbone = config.method.branch(backbone)
    head = config.method.stages()[stage].head(backbone.feature_dim, num_classes)
    return Classifier(backbone, head, config.method.log_posteriors)


def place_head(model: Classifier, config: RunConfig, stage: int) -> None:
    """Give a model the fresh head of a stage, on the model's device."""
    build_head = config.method.stages()[stage].head
    head = build_head(model.backbone.feature_dim, model.head.num_classes)
    example = next(model.parameters())
    model.head = head.to(example.device, example.dtype)


def freeze(model: nn.Module, names: tuple[str, ...]) -> tuple[nn.Module, ...]:
    """Take the named parts, and no others, out of training, and return them.

    The trainer keeps them in evaluation mode, so that batch statistics stay too.
    """
    model.requires_grad_(True)  # the stage before may have frozen others
    parts = tuple(model.get_submodule(name) for name in names)
    for part in parts:
        part.requires_grad_(False)
    return parts
