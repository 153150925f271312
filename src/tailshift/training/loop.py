"""The training loop, read top to bottom."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tailshift.data import Batch, Batches
from tailshift.training.checkpoint import Position
from tailshift.training.interrupt import StopRequest
from tailshift.training.progress import TrainingProgress
from tailshift.training.schedules import Schedule

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # seconds to import, and only named here

Metrics = dict[str, Any]


@runtime_checkable
class ChangesByEpoch(Protocol):
    """A head or loss with a schedule of its own: a pure function of the epoch."""

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Get ready for an epoch, counted from 0, of so many."""


@dataclass
class Trainer:
    """What is trained, on what, and how far it has come."""

    fabric: "Fabric"
    model: nn.Module
    loss: nn.Module
    optimizer: Optimizer | None
    """None where the stage has no epochs."""
    schedule: Schedule
    loader: Batches
    epochs: int
    frozen: tuple[nn.Module, ...] = ()
    """Parts of the model that keep their weights and statistics."""
    epochs_before: int = 0
    """Epochs of the stages before, for the metrics."""
    position: Position = field(default_factory=Position)

    @property
    def num_steps(self) -> int:
        """Steps in all."""
        return self.epochs * len(self.loader)

    @property
    def epochs_done(self) -> int:
        """Whole epochs done, those of the stages before counted."""
        return self.epochs_before + self.position.epoch

    @property
    def step(self) -> int:
        """Steps done."""
        return self.position.epoch * len(self.loader) + self.position.batch

    def fit(
        self,
        *,
        on_epoch: Callable[[Metrics], None],
        stop: StopRequest,
        progress: TrainingProgress,
    ) -> bool:
        """Train to the last epoch; return False if a stop was asked for before.

        Args:
            on_epoch: Called with the metrics of each epoch when it is done.
            stop: Checked after each step; an epoch whose last step is done is recorded.
            progress: Told of each step.
        """
        position, device = self.position, self.fabric.device
        optimizer = self.optimizer
        while position.epoch < self.epochs:
            assert optimizer is not None
            self.begin_epoch()
            clock = time.perf_counter()
            for batch in self.loader.epoch(position.epoch, position.batch):
                lr = self.set_learning_rate()
                images, labels = batch.images.to(device), batch.labels.to(device)
                output = self.model(images)
                loss = self.loss(output, labels)
                self.check_finite(loss, batch)
                self.fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                seconds, clock = time.perf_counter() - clock, time.perf_counter()
                position.batch += 1
                logits = output if isinstance(output, Tensor) else output.logits
                position.add(
                    images=len(logits),
                    loss=loss.item() * len(logits),
                    correct=(logits.argmax(-1) == labels[: len(logits)]).sum().item(),
                    seconds=seconds,
                )
                progress.step(loss.item(), seconds, len(labels))
                if stop.is_set and position.batch < len(self.loader):
                    return False
            metrics = epoch_metrics(position, self.epochs_done + 1, lr)
            if self.loader.num_broken is not None:
                metrics["skipped_images"] = self.loader.num_broken
            position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
            on_epoch(metrics)
            if stop.is_set:
                break
        return position.epoch == self.epochs

    def begin_epoch(self) -> None:
        """Put the model into training, and tell what changes by the epoch of it."""
        self.model.train()
        for part in self.frozen:
            part.eval()
        for module in (*self.model.modules(), *self.loss.modules()):
            if isinstance(module, ChangesByEpoch):
                module.begin_epoch(self.position.epoch, self.epochs)

    def set_learning_rate(self) -> float:
        """Give each group its learning rate for this step; return the highest."""
        assert self.optimizer is not None
        factor = self.schedule(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["highest_lr"]
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    def check_finite(self, loss: Tensor, batch: Batch) -> None:
        """Stop at a loss that is NaN or infinite, naming where it came up."""
        if torch.isfinite(loss):
            return
        ids = ", ".join(str(sample) for sample in batch.sample_ids[:8].tolist())
        raise FloatingPointError(
            f"the loss is {loss.item()} at step {self.step} (epoch "
            f"{self.position.epoch + 1}, samples {ids} …). Train again with a lower "
            "optim.lr."
        )


def epoch_metrics(position: Position, epoch: int, lr: float) -> Metrics:
    """Return the record of an epoch, counted from 1, from its sums."""
    sums = position.sums
    return {
        "epoch": epoch,
        "loss": sums["loss"] / sums["images"],
        "train_accuracy": sums["correct"] / sums["images"],
        "lr": lr,
        "seconds": round(sums["seconds"], 3),
        "images_per_second": round(sums["images"] / max(sums["seconds"], 1e-9), 1),
    }
