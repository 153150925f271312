"""From a configuration to a finished run directory."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from tailshift.config import RunConfig
from tailshift.data import LongTailedData, Split
from tailshift.files import atomic_write
from tailshift.models import Classifier, build_model, load_backbone_weights
from tailshift.predictions import Predictions
from tailshift.training.checkpoint import load_checkpoint, save_checkpoint
from tailshift.training.directory import (
    begin_directory,
    check_directory,
    default_directory,
)
from tailshift.training.interrupt import stop_on_interrupt
from tailshift.training.loop import Metrics, Trainer
from tailshift.training.progress import training_progress
from tailshift.training.run import (
    CHECKPOINT,
    CONFIG,
    FACTS,
    METRICS,
    TENSORBOARD,
    WEIGHTS,
    Run,
    load,
    predictions_path,
    read_metrics_lines,
    save_weights,
    write_json,
)
from tailshift.training.schedules import build_schedule

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
    model = new_model(config, data)
    trainer = build_trainer(config, data, model, fabric)
    recorder = Recorder(directory, config, data, model, trainer)
    if resume and (directory / CONFIG).is_file():
        recorder.restore()
    else:
        begin_directory(directory, config)
    recorder.write_facts("running")
    title = f"{config.recipe} · {config.method.title} · seed {config.seed}"
    with (
        stop_on_interrupt() as stop,
        training_progress(title, trainer.num_steps, done=trainer.step) as progress,
        recorder.tensorboard(),
    ):
        finished = trainer.fit(
            on_epoch=recorder.record_epoch, stop=stop, progress=progress
        )
    recorder.save_checkpoint()
    recorder.save_results(finished)
    return load(directory)


def check_splits(data: LongTailedData) -> None:
    """Refuse data that nothing can be learnt from or shown on."""
    for name, split in (("train", data.train), ("test", data.test)):
        if not len(split):
            raise ValueError(
                f"the {name} split of {data.name} must not be empty, but has no image."
            )


def new_model(config: RunConfig, data: LongTailedData) -> Classifier:
    """Return the classifier that training starts from."""
    model = build_model(
        config.model.name,
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        image_size=data.image_size,
        head=config.method.head,
        pretrained=False if config.model.weights else config.model.pretrained,
    )
    if config.model.weights:
        weights = Path(config.model.weights).expanduser()
        load_backbone_weights(model.backbone, weights)
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
    config: RunConfig, data: LongTailedData, model: Classifier, fabric: "Fabric"
) -> Trainer:
    """Return the trainer of a configuration, at its first step."""
    train, optim = config.train, config.optim
    loader = data.train.loader(
        batch_size=train.batch_size,
        training=True,
        seed=config.seed,
        sampler=train.sampler,
        num_epochs=train.epochs,
        drop_last=train.drop_last,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        num_workers=train.num_workers,
    )
    backbone_lr = optim.backbone_lr or optim.lr
    optimizer = SGD(
        [
            {"params": list(model.backbone.parameters()), "highest_lr": backbone_lr},
            {"params": list(model.head.parameters()), "highest_lr": optim.lr},
        ],
        lr=optim.lr,
        momentum=optim.momentum,
        nesterov=optim.nesterov,
        weight_decay=optim.weight_decay,
    )
    schedule = build_schedule(
        optim.schedule,
        epochs=train.epochs,
        steps_per_epoch=len(loader),
        warmup_epochs=optim.warmup_epochs,
        milestones=optim.milestones,
        decay=optim.decay,
    )
    counts = config.served_counts(data.class_counts)
    loss = config.method.build_loss(counts).to(fabric.device)
    wrapped, optimizer = fabric.setup(model, optimizer)
    return Trainer(fabric, wrapped, loss, optimizer, schedule, loader, train.epochs)


class Recorder:
    """Writes what a run leaves behind; only the first process writes."""

    def __init__(
        self,
        directory: Path,
        config: RunConfig,
        data: LongTailedData,
        model: nn.Module,
        trainer: Trainer,
    ) -> None:
        self.directory = directory
        self.config = config
        self.data = data
        self.model = model
        self.trainer = trainer
        self._board: Any = None

    @property
    def _modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "loss": self.trainer.loss}

    @contextmanager
    def tensorboard(self) -> Iterator[None]:
        """Open TensorBoard's event file while the block runs, where it is asked for."""
        if not self.config.train.tensorboard:
            yield
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ModuleNotFoundError(
                "`train.tensorboard` needs TensorBoard, which is not installed. "
                "Install tailshift[tensorboard]."
            ) from None
        folder, done = str(self.directory / TENSORBOARD), self.trainer.position.epoch
        with SummaryWriter(folder, purge_step=done + 1) as self._board:
            yield

    def record_epoch(self, metrics: Metrics) -> None:
        """Append an epoch's metrics to the file; save a checkpoint when it is time."""
        with (self.directory / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())  # on disk before the checkpoint that counts it
        if self._board is not None:
            for name in ("loss", "train_accuracy", "lr", "images_per_second"):
                self._board.add_scalar(name, metrics[name], metrics["epoch"])
        if metrics["epoch"] % self.config.train.checkpoint_every == 0:
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(
            self.directory / CHECKPOINT,
            self.trainer.position,
            modules=self._modules,
            optimizer=self.trainer.optimizer,
            scaler=self.trainer.fabric.strategy.precision.state_dict(),
        )

    def restore(self) -> None:
        """Go back to the checkpoint, if any, and cut the metrics written after it."""
        if (self.directory / CHECKPOINT).is_file():
            self.trainer.position, scaler = load_checkpoint(
                self.directory / CHECKPOINT,
                modules=self._modules,
                optimizer=self.trainer.optimizer,
            )
            if scaler:
                self.trainer.fabric.strategy.precision.load_state_dict(scaler)
        lines = read_metrics_lines(self.directory)[: self.trainer.position.epoch]
        with atomic_write(self.directory / METRICS) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")

    def write_facts(self, state: str) -> None:
        """Write what the data is and how far the run has come."""
        facts = {
            "state": state,
            "epochs_done": self.trainer.position.epoch,
            "class_names": list(self.data.class_names),
            "source_counts": self.data.class_counts.tolist(),
            "in_channels": self.data.in_channels,
            "image_size": self.data.image_size,
            "mean": list(self.data.mean),
            "std": list(self.data.std),
            "data_fingerprint": self.data.fingerprint,
        }
        write_json(self.directory / FACTS, facts)

    def save_results(self, finished: bool) -> None:
        """Write the weights and the logits of the evaluated splits."""
        save_weights(self.directory / WEIGHTS, self.model)
        for name, split in (("val", self.data.val), ("test", self.data.test)):
            if split is not None and len(split):
                path = predictions_path(self.directory, name)
                path.parent.mkdir(exist_ok=True)
                self._predictions(split).save(path, overwrite=True)
        self.write_facts("finished" if finished else "interrupted")

    def _predictions(self, split: Split) -> Predictions:
        counts = self.data.class_counts
        logits, labels = self._logits(split)
        predictions = Predictions(
            logits=logits,
            labels=labels,
            source_counts=counts,
            trained_prior=self.config.trained_prior(counts),
            class_names=self.data.class_names,
        )
        return predictions.half() if self.config.eval.half_logits else predictions

    @torch.inference_mode()
    def _logits(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return logits, (N, C), and labels, (N,), of the images that can be read."""
        loader = split.loader(
            batch_size=self.config.eval.batch_size,
            training=False,
            num_workers=self.config.train.num_workers,
        )
        model, device = self.trainer.model.eval(), self.trainer.fabric.device
        logits, labels = [], []
        for batch in loader.epoch(0):
            logits.append(model(batch.images.to(device)))
            labels.append(batch.labels)
        return torch.cat(logits).float().cpu(), torch.cat(labels)
