"""The recorder of a run: metrics, checkpoints, weights and logits."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from torch import Tensor, nn

from tailshift.config import RunConfig
from tailshift.data import FeatureSplit, LongTailedData, Split
from tailshift.files import atomic_write
from tailshift.models import Classifier
from tailshift.predictions import Predictions
from tailshift.processes import load_whole_state, whole_state
from tailshift.runs import files
from tailshift.runs.checkpoint import (
    data_mark,
    load_checkpoint,
    path_before,
    save_checkpoint,
)
from tailshift.storage import read_tensors, write_json, write_tensors
from tailshift.training.cross_fit import is_cross_fitted, out_of_fold
from tailshift.training.distributed import broadcast_decision, share_buffers
from tailshift.training.inference import outputs, validate
from tailshift.training.loop import Metrics, Trainer
from tailshift.training.progress import TrainingProgress, plan_lines, print_line
from tailshift.training.tracking import TRACKERS, Log

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Recorder:
    """Writes the files of a run; only the first process writes."""

    def __init__(
        self,
        directory: Path,
        config: RunConfig,
        data: LongTailedData,
        model: Classifier,
        fabric: "Fabric",
        *,
        is_verbose: bool = False,
    ) -> None:
        self.is_verbose = is_verbose and fabric.is_global_zero
        self.directory = directory
        self.config = config
        self.data = data
        self.model = model
        self.fabric = fabric
        self.epochs_done = 0
        self._scores: dict[int, float] = {}
        self._lines: list[str] = []  # of metrics.jsonl
        self._trainer: Trainer | None = None
        self._logs: list[Log] = []
        self._steps_since_saved = 0
        self._last_saved = time.monotonic()

    @property
    def checkpoint(self) -> Path:
        """The checkpoint file."""
        return self.directory / files.CHECKPOINT

    @property
    def _is_sharded(self) -> bool:
        """Whether other processes hold a part of the weights."""
        return self.config.train.shard and self.fabric.world_size > 1

    @property
    def _modules(self) -> dict[str, nn.Module]:
        average = self.trainer.average
        averaged = {} if average is None else {"average": average.model}
        return {"model": self.model, "loss": self.trainer.loss, **averaged}

    @property
    def _evaluated(self) -> nn.Module:
        """The model, or the average of its weights with ``train.ema``."""
        average = self.trainer.average
        return self.model if average is None else average.model

    def take_average(self) -> None:
        """Load the averaged weights into the model at the end of a stage, if any."""
        if self._evaluated is not self.model:
            share_buffers(self._evaluated, self.fabric)
            self.model.load_state_dict(self._evaluated.state_dict())

    @property
    def trainer(self) -> Trainer:
        """Trainer of the current stage."""
        assert self._trainer is not None
        return self._trainer

    def follow(self, trainer: Trainer, *, is_resumed: bool) -> None:
        """Start recording a stage, from its checkpoint or from its first step.

        Args:
            trainer: Trainer of the stage.
            is_resumed: Whether to load the checkpoint.
        """
        self._trainer = trainer
        self._scores = {}
        if is_resumed:
            self._restore()
        self.epochs_done = trainer.epochs_done
        self.write_facts("running")
        self.fabric.barrier()  # all processes must have read the checkpoint

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Open the trackers of ``train.track`` while the block runs."""
        train = self.config.train
        names = {*train.track, *(["tensorboard"] if train.tensorboard else [])}
        with ExitStack() as opened:
            self._logs = [
                opened.enter_context(
                    tracker(self.directory, self.config, self.epochs_done)
                )
                for name, tracker in TRACKERS.items()
                if name in names and self.fabric.is_global_zero
            ]
            yield

    def print_plan(self, *, is_filled: bool) -> None:
        """Print what will be trained, if the run is verbose."""
        if self.is_verbose:
            for line in plan_lines(self.config, self.data, is_filled=is_filled):
                print_line(Console(stderr=True), line)

    def record_epoch(
        self, metrics: Metrics, progress: TrainingProgress | None = None
    ) -> None:
        """Validate, append the epoch's metrics to the file and save if it is due.

        Args:
            metrics: Metrics of the epoch; validation metrics are added.
            progress: Progress bar that shows the metrics.
        """
        metrics |= validate(self.fabric, self._evaluated, self.data, self.config)
        self.epochs_done = epoch = metrics["epoch"]
        self._score(metrics)
        is_kept = self.config.train.keep == "best" and self.best_epoch == epoch
        if is_kept:
            self._save_best()
        if self.fabric.is_global_zero:
            self._append(metrics)
        if progress is not None:
            progress.epoch(metrics, self.config.own_epochs)
        # Save the best weights and the checkpoint together, so that the previous
        # versions of both files also belong together.
        if is_kept or epoch % self.config.train.checkpoint_every == 0:
            self.save_checkpoint()
        self._stop_without_progress()

    @property
    def best_epoch(self) -> int | None:
        """Epoch of the last stage with the highest score; the first one of equals."""
        return max(self._scores, key=self._scores.__getitem__, default=None)

    def _score(self, metrics: Metrics) -> None:
        """Keep the score of an epoch of the last stage; all processes know it."""
        score = metrics.get("val_balanced_accuracy")
        is_last = self.trainer.position.stage == len(self.config.method.stages()) - 1
        if score is not None and is_last:
            self._scores[metrics["epoch"]] = score

    def _stop_without_progress(self) -> None:
        """Stop early if the score has not risen for ``train.patience`` epochs."""
        patience, best = self.config.train.patience, self.best_epoch
        if patience is None or best is None:
            return
        if self.trainer.epochs_done - best >= patience:
            self.trainer.end_early()

    @property
    def _best(self) -> Path:
        return self.directory / files.BEST

    def _check_folder(self) -> None:
        """Raise an error if the folder is gone: a new one would be half empty."""
        if not self.directory.is_dir():
            raise FileNotFoundError(f"There is no folder {self.directory}.")

    def _save_best(self) -> None:
        weights = whole_state(self._evaluated)
        if self.fabric.is_global_zero:
            self._check_folder()
            notes = {files.WEIGHTS_MARK: "1", "epoch": str(self.epochs_done)}
            write_tensors(self._best, weights, notes, keep=path_before(self._best))

    def _load_best(self) -> None:
        """Load the weights of the best epoch."""
        if not self._is_best(self._best):
            raise ValueError(
                f"{self._best} must have the weights of the best epoch, "
                f"{self.best_epoch}, but has not. Start the run again with --force."
            )
        load_whole_state(self._evaluated, read_tensors(self._best).tensors)

    def _restore_best(self) -> None:
        """Undo best weights that a killed process wrote after its checkpoint."""
        before = path_before(self._best)
        if self._is_best(before) and not self._is_best(self._best):
            before.replace(self._best)

    def _is_best(self, path: Path) -> bool:
        """Return whether a file has the weights of the best epoch."""
        if not path.is_file():
            return False
        return read_tensors(path).metadata.get("epoch") == str(self.best_epoch)

    def _append(self, metrics: Metrics) -> None:
        self._lines.append(json.dumps(metrics) + "\n")
        with (self.directory / files.METRICS_LOG).open("a", encoding="utf-8") as file:
            file.write(self._lines[-1])
            file.flush()
            os.fsync(file.fileno())  # on disk before the checkpoint that counts it
        names = ("loss", "train_accuracy", "lr", "images_per_second")
        tracked = (*names, *(key for key in metrics if key.startswith("val_")))
        for log in self._logs:
            log({name: metrics[name] for name in tracked}, metrics["epoch"])

    def after_step(self) -> None:
        """Save a checkpoint within an epoch if it is due."""
        self._steps_since_saved += 1
        minutes = (time.monotonic() - self._last_saved) / 60
        train = self.config.train
        most_steps = train.checkpoint_steps or float("inf")
        most_minutes = train.checkpoint_minutes or float("inf")
        is_time = self._steps_since_saved >= most_steps or minutes >= most_minutes
        if self._is_sharded:  # all processes take part, and their clocks differ
            is_time = broadcast_decision(is_time, self.fabric.device)
        if is_time:
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Write the checkpoint; keep the previous one."""
        if not (self.fabric.is_global_zero or self._is_sharded):
            return
        self._steps_since_saved, self._last_saved = 0, time.monotonic()
        save_checkpoint(
            self.checkpoint,
            self.trainer.position,
            modules=self._modules,
            optimizer=self.trainer.optimizer,
            scaler=self.fabric.strategy.precision.state_dict(),
            data=data_mark(self.data),
            metrics=self._lines,
            is_writer=self.fabric.is_global_zero,
        )

    def _restore(self) -> None:
        """Load the checkpoint, if any, and the metrics written before it."""
        lines = None
        if self.checkpoint.is_file():
            self.trainer.position, scaler, lines = load_checkpoint(
                self.checkpoint,
                modules=self._modules,
                optimizer=self.trainer.optimizer,
                data=data_mark(self.data),
            )
            if scaler:
                self.fabric.strategy.precision.load_state_dict(scaler)
        if lines is None:
            lines = files.read_metrics_lines(self.directory)
        self._lines = lines[: self.trainer.epochs_done]
        done = files.parse_metrics(self._lines, self.directory / files.METRICS_LOG)
        for metrics in done[self.trainer.epochs_before :]:
            self._score(metrics)
        self._stop_without_progress()
        if not self.fabric.is_global_zero:
            return
        self._check_folder()
        with atomic_write(self.directory / files.METRICS_LOG) as temporary:
            temporary.write_text("".join(self._lines), encoding="utf-8")
        if self.config.train.keep == "best":
            self._restore_best()

    def write_facts(self, state: str) -> None:
        """Write run.json: facts about the data, and the state of the run."""
        if not self.fabric.is_global_zero:
            return
        self._check_folder()
        facts = {
            "state": state,
            "epochs_done": self.epochs_done,
            "stage": self.trainer.position.stage,
            "class_names": list(self.data.class_names),
            "source_counts": self.data.class_counts.tolist(),
            "in_channels": self.data.in_channels,
            "image_size": self.data.image_size,
            "mean": list(self.data.mean),
            "std": list(self.data.std),
            "data_fingerprint": self.data.fingerprint,
            "log_posteriors": True,
        }
        if self.data.full_counts is not None:
            facts["full_counts"] = self.data.full_counts.tolist()
        preparation = getattr(self.data.train, "preparation", None)
        if isinstance(self.data.train, FeatureSplit) and preparation is not None:
            facts["preparation"] = preparation.to_mapping()
        if plugins := files.used_plugins(self.config):
            facts["plugins"] = [
                plugin.model_dump(mode="json", exclude_defaults=True)
                for plugin in plugins
            ]
        if self.config.train.keep == "best" and self.best_epoch is not None:
            facts["kept_epoch"] = self.best_epoch
        epochs = files.read_metrics(self.directory)
        skipped = [epoch.get("skipped_images") for epoch in epochs]
        if any(count is not None for count in skipped):
            # A loader counts from the epoch it was started in.
            facts["skipped_images"] = max(count or 0 for count in skipped)
        write_json(self.directory / files.FACTS, facts)

    def save_results(self, finished: bool) -> None:
        """Write the weights and the logits of the evaluated splits."""
        is_first = self.fabric.is_global_zero
        if is_first:
            self._check_folder()
        if self.config.train.keep == "best" and self.best_epoch is not None:
            self._load_best()
        weights = self.directory / files.WEIGHTS
        files.save_weights(weights, self._evaluated, is_writer=is_first)
        for name, split in (("val", self.data.val), ("test", self.data.test)):
            if split is not None and len(split):
                self._save_predictions(name, *self._outputs(split))
        if finished and is_cross_fitted(self.config, self.data, self.trainer):
            decay = json.loads(self._lines[-1])["weight_decay"]
            self._save_predictions("val", *out_of_fold(self.config, self.data, decay))
        self.write_facts("finished" if finished else "interrupted")
        self.fabric.barrier()  # no process reads the run before it is complete

    def _outputs(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return the logits and labels of a split; all processes take part."""
        seen = split.seen_in(self.config.eval.views)
        return outputs(self.fabric, self._evaluated, seen, self.config)

    def _save_predictions(self, name: str, logits: Tensor, labels: Tensor) -> None:
        if not self.fabric.is_global_zero:
            return
        counts = self.data.class_counts
        predictions = Predictions(
            logits=logits.float(),
            labels=labels,
            source_counts=counts,
            logit_prior=self.config.logit_prior(counts),
            class_names=self.data.class_names,
            full_counts=self.data.full_counts,
        )
        if self.config.eval.half_logits:
            predictions = predictions.half()
        path = files.predictions_path(self.directory, name)
        path.parent.mkdir(exist_ok=True)
        predictions.save(path, overwrite=True)
