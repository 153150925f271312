"""How long training will take: from the shape of the data and a few timed steps."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.config import RunConfig
from tailshift.data import Batch, Batches, DataShape, benchmarks, cifar, dataset
from tailshift.runs.checkpoint import Position
from tailshift.runs.network import build_network
from tailshift.training.build import assemble_trainer, build_loss
from tailshift.training.distributed import build_fabric
from tailshift.training.loop import Trainer
from tailshift.training.progress import duration
from tailshift.workers import StopRequest

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def data_shape(config: RunConfig, data_root: Path | None = None) -> DataShape:
    """Return the shape of a configuration's data; it is read only if it must be."""
    shape = config.data.known_shape()
    if shape is not None:
        return shape
    data = config.data.load(root=data_root, seed=config.seed)
    return DataShape(data.class_counts, data.image_size, data.in_channels)


def missing_data(configs: Iterable[RunConfig], root: Path | None = None) -> list[str]:
    """Return a sentence for each benchmark whose files are not there.

    Args:
        configs: What would be trained.
        root: Folder that holds the data; None takes ``TAILSHIFT_DATA``.
    """
    sets = {config.data_name: config.data for config in configs}
    return [text for data in sets.values() if (text := _missing(data, root))]


def _missing(data: dataset.Dataset, root: Path | None) -> str:
    """Return what is not there, or the empty text; nothing is downloaded."""
    if not isinstance(data, benchmarks.ListBenchmark | cifar.CIFARLT):
        return ""
    try:
        folder = dataset.data_root(root)
        if isinstance(data, benchmarks.ListBenchmark):
            for name in data.lists.values():
                data.find_list(folder, name)
            return ""
    except ValueError:  # no folder is named
        return f"{data.name} cannot be trained on: name its folder with --data-root."
    except FileNotFoundError as error:
        return str(error)
    name = data.layout.folder
    folder = folder if folder.name == name else folder / name
    if folder.is_dir():
        return ""
    return (
        f"{data.name} is not in `{folder}`: training downloads it there first. If it "
        "is elsewhere, name the folder around it with --data-root."
    )


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
    configs: Iterable[RunConfig],
    data_root: Path | None = None,
    announce: Callable[[str], None] = lambda text: None,
) -> list[Estimate]:
    """Return how long each run would take; equal steps are measured once.

    Args:
        configs: What would be trained.
        data_root: Folder that holds the data, if it is read from disk.
        announce: Told which step is timed next, as that takes a while.
    """
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
            announce(f"timing one step of {config.recipe}")
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

    The batch grows from a few images to the recipe's share of one process. If a step
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


class _OneBatch:
    """Gives the batch that was put into it last, as an epoch."""

    batch: Batch
    num_broken = None

    def __len__(self) -> int:
        return 1

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        yield self.batch

    def close(self) -> None:
        """Nothing works beside it."""


def _stepper(config: RunConfig, shape: DataShape) -> Callable[[int], float]:
    """Return a function that trains one step on so many random images and times it."""
    config = _in_one_process(config)
    fabric, loader, stop = build_fabric(config), _OneBatch(), StopRequest()
    trainer = _trainer(config, shape, fabric, loader)
    parts, side = len(config.samplers(config.method.stages()[0])), shape.image_size
    weights = next(trainer.model.parameters())
    stop.is_set = True  # after the one step

    def step(size: int) -> float:
        images = torch.randn(parts * size, shape.in_channels, side, side)
        labels = torch.randint(shape.num_classes, (parts * size,))
        loader.batch = Batch(images, labels, torch.arange(parts * size))
        trainer.position = Position()
        start = time.perf_counter()
        trainer.fit(on_epoch=lambda metrics: None, stop=stop)
        weights.flatten()[0].item()  # waits until the device is done
        return time.perf_counter() - start

    return step


def _trainer(
    config: RunConfig, shape: DataShape, fabric: "Fabric", loader: Batches
) -> Trainer:
    """Return the trainer of the first stage, which hardly moves on random images."""
    network = build_network(
        config,
        num_classes=shape.num_classes,
        in_channels=shape.in_channels,
        image_size=shape.image_size,
        is_filled=True,
    )
    if config.train.channels_last:
        network.to(memory_format=torch.channels_last)
    loss = build_loss(config, shape.class_counts, config.method.stages()[0])
    trainer = assemble_trainer(config, network, loss, loader, fabric)
    return replace(trainer, schedule=lambda step: 1e-6)


def estimate_table(estimates: Sequence[Estimate]) -> Table:
    """Return one line for each run that would be trained, and their sum."""
    table = Table(
        title="To be trained, with the time of its steps on this machine",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_footer=True,
    )
    num_runs = f"{len(estimates)} run{'' if len(estimates) == 1 else 's'}"
    total = duration(sum(estimate.seconds for estimate in estimates))
    table.add_column("Recipe", footer=Text(num_runs))
    for name, footer in (("Seed", ""), ("Steps", ""), ("ms/step", ""), ("Time", total)):
        table.add_column(name, footer=Text(footer), justify="right", no_wrap=True)
    for estimate in estimates:
        table.add_row(
            Text(estimate.recipe),
            f"{estimate.seed}",
            f"{estimate.num_steps:,}",
            f"{1000 * estimate.seconds_per_step:,.0f}",
            duration(estimate.seconds),
        )
    return table
