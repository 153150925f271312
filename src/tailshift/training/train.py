"""From a configuration to a finished run directory."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD

from tailshift.config import RunConfig
from tailshift.data import LongTailedData, MemoryLoader, Split
from tailshift.models import build_model
from tailshift.predictions import Predictions
from tailshift.training.checkpoint import load_checkpoint, save_checkpoint
from tailshift.training.environment import describe_environment
from tailshift.training.interrupt import stop_on_interrupt
from tailshift.training.loop import Metrics, Trainer
from tailshift.training.progress import training_progress
from tailshift.training.run import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    FACTS,
    METRICS,
    WEIGHTS,
    Run,
    load,
    predictions_path,
    read_config,
    save_weights,
    write_json,
)
from tailshift.training.schedules import build_schedule


def train(
    config: RunConfig,
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
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
    """
    directory = Path(output) if output is not None else default_directory(config)
    prepare_directory(directory, config, resume=resume, force=force)
    fabric = build_fabric(config)
    torch.manual_seed(config.seed)
    root = Path(data_root) if data_root is not None else None
    data = config.data.load(root=root, seed=config.seed)
    model = build_model(
        config.model.name,
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        head=config.method.head,
        pretrained=config.model.pretrained,
    )
    if config.train.channels_last:
        model.to(memory_format=torch.channels_last)
    trainer = build_trainer(config, data, model, fabric)
    recorder = Recorder(directory, config, data, model, trainer)
    if resume and (directory / CHECKPOINT).is_file():
        recorder.restore()
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


def default_directory(config: RunConfig) -> Path:
    """Return ``runs/RECIPE/METHOD-seedN``."""
    return Path("runs") / config.recipe / f"{config.method_name}-seed{config.seed}"


def prepare_directory(
    directory: Path, config: RunConfig, *, resume: bool, force: bool
) -> None:
    """Make a new run directory, or check the one that exists; nothing is lost."""
    if resume and (directory / CONFIG).is_file():
        check_same_config(directory, config)
        return
    if directory.exists() and any(directory.iterdir()):
        if not force:
            raise FileExistsError(
                f"`output` {directory} exists. Go on with it (--resume), replace it "
                "(--force) or name another folder (--output)."
            )
        if not (directory / CONFIG).is_file():
            raise FileExistsError(
                f"`output` {directory} is not a run directory, so --force does not "
                "replace it. Name another folder (--output)."
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / CONFIG, config.to_mapping())
    write_json(directory / ENVIRONMENT, describe_environment())


def check_same_config(directory: Path, config: RunConfig) -> None:
    """Refuse to go on with a run under other settings than it began with."""
    began, asked = read_config(directory).to_mapping(), config.to_mapping()
    for section in asked:
        if began[section] != asked[section]:
            raise ValueError(
                f"{directory} was begun with {section} = {began[section]!r}, "
                f"but --resume asks for {asked[section]!r}. Resume with the settings "
                "it was begun with, or name another folder (--output)."
            )


def build_fabric(config: RunConfig) -> Fabric:
    """Return the launched Fabric: device, precision and processes."""
    train = config.train
    fabric = Fabric(
        accelerator=train.accelerator,
        devices=train.devices,
        num_nodes=train.num_nodes,
        precision=train.precision,
    )
    fabric.launch()
    return fabric


def build_trainer(
    config: RunConfig, data: LongTailedData, model: nn.Module, fabric: Fabric
) -> Trainer:
    """Return the trainer of a configuration, at its first step."""
    train, optim = config.train, config.optim
    loader = MemoryLoader(
        data.train,
        batch_size=train.batch_size,
        augmentation=data.augmentation,
        mean=data.mean,
        std=data.std,
        seed=config.seed,
        drop_last=train.drop_last,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    optimizer = SGD(
        [{"params": list(model.parameters()), "highest_lr": optim.lr}],
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
    loss = config.method.build_loss(data.class_counts).to(fabric.device)
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
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.directory / "tensorboard")) as self._board:
            yield

    def record_epoch(self, metrics: Metrics) -> None:
        """Append an epoch's metrics to the file; save a checkpoint when it is time."""
        with (self.directory / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")
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
        """Go back to the checkpoint, and cut the metrics written after it."""
        position, scaler = load_checkpoint(
            self.directory / CHECKPOINT,
            modules=self._modules,
            optimizer=self.trainer.optimizer,
        )
        self.trainer.position = position
        if scaler:
            self.trainer.fabric.strategy.precision.load_state_dict(scaler)
        path = self.directory / METRICS
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(lines[: position.epoch]), encoding="utf-8")

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
            if split is not None:
                path = predictions_path(self.directory, name)
                path.parent.mkdir(exist_ok=True)
                self._predictions(split).save(path, overwrite=True)
        self.write_facts("finished" if finished else "interrupted")

    def _predictions(self, split: Split) -> Predictions:
        counts = self.data.class_counts
        predictions = Predictions(
            logits=self._logits(split),
            labels=split.labels,
            source_counts=counts,
            trained_prior=self.config.method.trained_prior(counts),
            class_names=self.data.class_names,
        )
        return predictions.half() if self.config.eval.half_logits else predictions

    @torch.inference_mode()
    def _logits(self, split: Split) -> Tensor:
        loader = MemoryLoader(
            split,
            batch_size=self.config.eval.batch_size,
            mean=self.data.mean,
            std=self.data.std,
            shuffle=False,
        )
        model, device = self.trainer.model.eval(), self.trainer.fabric.device
        batches = [model(batch.images.to(device)) for batch in loader.epoch(0)]
        return torch.cat(batches).float().cpu()  # (N, C)
