"""From a configuration to a finished run directory."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import SGD

from tailshift.config import RunConfig
from tailshift.data import Batches, LongTailedData, StackedLoader
from tailshift.methods import Stage
from tailshift.models import Classifier
from tailshift.training.checkpoint import Position, read_position
from tailshift.training.directory import (
    begin_directory,
    check_directory,
    default_directory,
)
from tailshift.training.hold_out import with_validation
from tailshift.training.inference import SplitFeatures
from tailshift.training.interrupt import StopRequest, stop_on_interrupt
from tailshift.training.loop import Trainer
from tailshift.training.network import build_network, freeze, place_head
from tailshift.training.progress import training_progress
from tailshift.training.recorder import Recorder
from tailshift.training.run import CONFIG, Run, load
from tailshift.training.schedules import build_schedule
from tailshift.training.start import start_from

if TYPE_CHECKING:
    from lightning_fabric import Fabric

HELD_OUT = 0.1
"""Share of the training images that a method validates on where there are no others."""

OTHER_SEED = 1_000_003
"""Between the seeds of a stage's samplers."""


def train(
    config: RunConfig,
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    data: LongTailedData | None = None,
) -> Run:
    """Train, evaluate and return the run.

    Ctrl-C (once) ends the step under way, then saves a run that can be used and
    resumed.

    Args:
        config: What to train; `tailshift.load_recipe` makes one.
        output: The run directory, by default ``runs/RECIPE/METHOD-seedN``.
        data_root: The folder that holds the data, where it is read from disk.
        resume: Go on from the last checkpoint in ``output``.
        force: Replace a run that is in ``output``.
        data: Take these splits instead of loading those that ``config`` names.
    """
    directory = Path(output) if output is not None else default_directory(config)
    check_directory(directory, config, resume=resume, force=force)
    fabric = build_fabric(config)
    torch.manual_seed(config.seed)
    if data is None:
        root = Path(data_root) if data_root is not None else None
        data = config.data.load(root=root, seed=config.seed)
    check_splits(data)
    if getattr(config.method, "needs_validation", False):
        data = _held_out(config, data)
    model = new_model(config, data)
    recorder = Recorder(directory, config, data, model, fabric)
    is_resumed = resume and (directory / CONFIG).is_file()
    if not is_resumed:
        begin_directory(directory, config)
    with stop_on_interrupt() as stop, recorder.tensorboard():
        finished = train_stages(recorder, stop, is_resumed=is_resumed)
    recorder.save_checkpoint()
    recorder.save_results(finished)
    return load(directory)


def train_stages(recorder: Recorder, stop: StopRequest, *, is_resumed: bool) -> bool:
    """Train one stage after the other; return False if a stop was asked for before.

    Args:
        recorder: Has the model and the data, and is told of all that happens.
        stop: Ends training after the step under way.
        is_resumed: Whether to begin where the checkpoint is.
    """
    config, data, model = recorder.config, recorder.data, recorder.model
    features = SplitFeatures(recorder.fabric, model, data, config)
    stages = config.method.stages()
    first = first_stage(recorder, is_resumed=is_resumed)
    for number, stage in enumerate(stages[first:], first):
        if number > 0:
            previous = model.head
            place_head(model, config, number)
            if not (is_resumed and number == first):
                model.head.begin(previous, features)
        trainer = build_trainer(config, data, model, recorder.fabric, number)
        recorder.follow(trainer, is_resumed=is_resumed and number == first)
        title = f"{config.recipe} · {config.method.title} · seed {config.seed}"
        if len(stages) > 1:
            title += f" · {stage.title}"
        with training_progress(title, trainer.num_steps, done=trainer.step) as progress:
            if not trainer.fit(
                on_epoch=recorder.record_epoch, stop=stop, progress=progress
            ):
                return False
    return True


def first_stage(recorder: Recorder, *, is_resumed: bool) -> int:
    """Return the stage to begin with: the checkpoint's, or the first not given."""
    config = recorder.config
    if is_resumed and recorder.checkpoint.is_file():
        return read_position(recorder.checkpoint).stage
    if config.train.start_from:
        start_from(recorder.model, config, recorder.data)
        return 1
    return 0


def _held_out(config: RunConfig, data: LongTailedData) -> LongTailedData:
    """Return the data with validation images that no stage trains on, if it may be."""
    if data.val is not None or config.train.start_from:
        return data
    return with_validation(data, HELD_OUT, seed=config.seed)


def check_splits(data: LongTailedData) -> None:
    """Refuse data that nothing can be learnt from or shown on."""
    for name, split in (("train", data.train), ("test", data.test)):
        if not len(split):
            raise ValueError(
                f"the {name} split of {data.name} must not be empty, but has no image."
            )
    empty = (data.class_counts == 0).nonzero().flatten().tolist()
    if empty:
        names = ", ".join(data.class_names[c] for c in empty[:5])
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise ValueError(
            f"every class of {data.name} must have a training image, but {names}{more} "
            "has none: no method can tell what it looks like. Leave the class out."
        )


def new_model(config: RunConfig, data: LongTailedData) -> Classifier:
    """Return the classifier that training starts from."""
    model = build_network(
        config,
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        image_size=data.image_size,
        is_filled=bool(config.train.start_from),
    )
    if config.train.channels_last:
        model.to(memory_format=torch.channels_last)
    return model


def build_fabric(config: RunConfig) -> "Fabric":
    """Return the launched Fabric: device, precision and processes."""
    from lightning_fabric import Fabric  # seconds to import: only when training

    train = config.train
    if train.devices * train.num_nodes > 1:
        raise ValueError(
            "`train.devices` times `train.num_nodes` must be 1, but is "
            f"{train.devices * train.num_nodes}. One process trains at a time for now."
        )
    try:
        fabric = Fabric(
            accelerator=train.accelerator,
            devices=train.devices,
            num_nodes=train.num_nodes,
            precision=train.precision,
        )
    except RuntimeError:
        if train.accelerator in ("auto", "cpu"):
            raise
        raise ValueError(
            f"`train.accelerator` must be there, but {train.accelerator!r} is not. "
            "Take 'auto' or 'cpu'."
        ) from None
    fabric.launch()
    return fabric


def build_trainer(
    config: RunConfig,
    data: LongTailedData,
    model: Classifier,
    fabric: "Fabric",
    stage_number: int = 0,
) -> Trainer:
    """Return the trainer of a stage, at its first step."""
    stages = config.method.stages()
    stage = stages[stage_number]
    begun = stages[1 if config.train.start_from else 0 : stage_number]
    counts = config.served_counts(data.class_counts, stage)
    frozen = freeze(model, stage.frozen)
    epochs = stage_epochs(config, stage)
    loader = build_loader(config, data, stage, fabric)
    optimizer = build_optimizer(config, model, stage) if epochs else None
    wrapped: nn.Module = model.to(fabric.device)
    if optimizer is not None:
        wrapped, optimizer = fabric.setup(model, optimizer)
    return Trainer(
        fabric,
        wrapped,
        stage.loss(counts).to(fabric.device),
        optimizer,
        build_schedule(
            stage.schedule or config.optim.schedule,
            epochs=max(epochs, 1),
            steps_per_epoch=len(loader),
            warmup_epochs=config.optim.warmup_epochs if stage_number == 0 else 0,
            milestones=config.optim.milestones,
            decay=config.optim.decay,
        ),
        loader,
        epochs,
        frozen=frozen,
        epochs_before=sum(stage_epochs(config, stage) for stage in begun),
        position=Position(stage=stage_number),
    )


def build_loader(
    config: RunConfig, data: LongTailedData, stage: Stage, fabric: "Fabric"
) -> Batches:
    """Return the training batches of a stage; several samplers give stacked ones."""
    train = config.train
    loaders = [
        data.train.loader(
            batch_size=train.batch_size,
            training=True,
            seed=(config.seed + OTHER_SEED * number) % 2**32,
            sampler=sampler,
            num_epochs=max(stage_epochs(config, stage), 1),
            drop_last=train.drop_last,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            num_workers=train.num_workers,
        )
        for number, sampler in enumerate(config.samplers(stage))
    ]
    return loaders[0] if len(loaders) == 1 else StackedLoader(loaders)


def build_optimizer(config: RunConfig, model: Classifier, stage: Stage) -> SGD:
    """Return SGD over what the stage trains; the backbone may have its own rate."""
    optim = config.optim
    lr = stage.lr or optim.lr
    backbone_lr = lr * (optim.backbone_lr or optim.lr) / optim.lr
    groups = ((model.backbone, backbone_lr), (model.head, lr))
    return SGD(
        [
            {"params": parameters, "highest_lr": highest_lr}
            for part, highest_lr in groups
            if (parameters := [p for p in part.parameters() if p.requires_grad])
        ],
        lr=lr,
        momentum=optim.momentum,
        nesterov=optim.nesterov,
        weight_decay=optim.weight_decay,
    )


def stage_epochs(config: RunConfig, stage: Stage) -> int:
    """Return how many epochs a stage trains."""
    return config.train.epochs if stage.epochs is None else stage.epochs
