"""How long a run would take here: a second of its training, measured, times its steps.

What is measured are steps of the recipe's model, loss and optimiser on random images;
reading and augmenting real ones, and the evaluation at the end, come on top.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.optim import SGD

from tailshift.config import RunConfig
from tailshift.training.data_shape import DataShape, data_shape
from tailshift.training.distributed import build_fabric
from tailshift.training.network import build_network

SMALLEST_BATCH = 4
LONG_STEP = 2.0
"""Seconds: a step that takes longer is measured at no larger a batch."""
MEASURED = 1.0
"""Seconds over which steps of the whole batch are measured."""


@dataclass(frozen=True)
class Estimate:
    """How long a run would take on this machine."""

    recipe: str
    seed: int
    num_steps: int
    seconds_per_step: float

    @property
    def seconds(self) -> float:
        """For all steps."""
        return self.num_steps * self.seconds_per_step


def estimate_runs(
    configs: Iterable[RunConfig], data_root: Path | None = None
) -> list[Estimate]:
    """Return how long each run would take; equal steps are measured once."""
    measured: dict[object, float] = {}
    estimates = []
    for config in configs:
        shape = data_shape(config, data_root)
        equal = (
            config.model,
            config.method_name,
            config.train,
            shape.num_classes,
            shape.image_size,
        )
        if equal not in measured:
            measured[equal] = seconds_per_step(config, shape)
        steps = num_steps(config, shape)
        estimates.append(Estimate(config.recipe, config.seed, steps, measured[equal]))
    return estimates


def num_steps(config: RunConfig, shape: DataShape) -> int:
    """Return the steps of all epochs.

    Example:
        >>> from tailshift.recipes import load_recipe
        >>> shape = DataShape(torch.tensor([100, 50]), in_channels=1, image_size=8)
        >>> config = load_recipe("digits_lt", ["train.epochs=30"])
        >>> num_steps(config, shape)  # 30 epochs of ⌈150 / 64⌉
        90
    """
    share = shape.num_samples / config.train.batch_size
    steps = math.floor(share) if config.train.drop_last else math.ceil(share)
    return steps * config.own_epochs


def seconds_per_step(config: RunConfig, shape: DataShape) -> float:
    """Return the seconds of one training step, measured.

    The batch grows from a few images to the recipe's share of one process. Where a step
    takes long before, as large networks do without a GPU, its time is scaled up.
    """
    whole = math.ceil(
        config.train.batch_size / (config.train.devices * config.train.num_nodes)
    )
    step = _stepper(config, shape)
    size = min(SMALLEST_BATCH, whole)
    while True:
        step(size)  # the first one also asks for memory and chooses kernels
        seconds = step(size)
        if seconds > LONG_STEP:
            return seconds * whole / size
        if size == whole:
            return _mean_seconds(lambda: step(whole))
        size = min(2 * size, whole)


def _mean_seconds(step: Callable[[], float]) -> float:
    seconds = [step()]
    while sum(seconds) < MEASURED:
        seconds.append(step())
    return sum(seconds) / len(seconds)


def _in_one_process(config: RunConfig) -> RunConfig:
    train = config.train.model_copy(update={"devices": 1, "num_nodes": 1})
    return config.model_copy(update={"train": train})


def _stepper(config: RunConfig, shape: DataShape) -> Callable[[int], float]:
    """Return a function that trains one step of so many images and times it."""
    fabric = build_fabric(_in_one_process(config))
    network = build_network(
        config,
        num_classes=shape.num_classes,
        in_channels=shape.in_channels,
        image_size=shape.image_size,
        is_filled=True,
    )
    stage = config.method.stages()[0]
    if config.train.channels_last:
        network.to(memory_format=torch.channels_last)
    optimizer = SGD(network.parameters(), lr=1e-6, momentum=config.optim.momentum)
    model, optimizer = fabric.setup(network, optimizer)
    criterion = stage.loss(shape.class_counts).to(fabric.device)
    parts = len(config.samplers(stage))

    def step(size: int) -> float:
        side = shape.image_size
        images = torch.randn(
            parts * size, shape.in_channels, side, side, device=fabric.device
        )
        labels = torch.randint(shape.num_classes, (parts * size,)).to(fabric.device)
        start = time.perf_counter()
        loss = criterion(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits until the device is done
        return time.perf_counter() - start

    return step
