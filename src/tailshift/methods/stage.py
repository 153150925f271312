"""A stage of training: what is trained, on which loss, on images served how."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from tailshift.models import HeadBuilder, LinearHead


@dataclass(frozen=True)
class Stage:
    """A part of training with one head, one loss and one way to serve the images.

    Whatever is None is the recipe's.
    """

    loss: Callable[[Tensor], nn.Module]
    """From how often each class is served, (C,), to the loss of (output, labels)."""
    head: HeadBuilder = LinearHead
    """The classifier on top of the backbone."""
    title: str = "whole network"
    """What is trained, for progress and lists."""
    frozen: tuple[str, ...] = ()
    """Parts of the network that keep their weights and statistics."""
    samplers: tuple[str, ...] | None = None
    """Names of `tailshift.data.samplers`. Of several, each gives a batch of its own,
    and a step reads them stacked."""
    epochs: int | None = None
    """How long; 0 where the head is found and not trained."""
    lr: float | None = None
    """The highest learning rate."""
    backbone_lr: float | None = None
    """That of the backbone, where it has its own."""
    schedule: str | None = None
    """A name of `tailshift.training.schedules`."""
