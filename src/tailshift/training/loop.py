"""The training loop, read top to bottom."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tailshift.data import Batch
from tailshift.training.checkpoint import Position
from tailshift.training.interrupt import StopRequest
from tailshift.training.progress import TrainingProgress
from tailshift.training.schedules import Schedule

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # seconds to import, and only named here

Metrics = dict[str, Any]


class Loader(Protocol):
    """Batches of an epoch, from any batch on."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch."""


@dataclass
class Trainer:
    """What is trained, on what, and how far it has come."""

    fabric: "Fabric"
    model: nn.Module
    loss: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    loader: Loader
    epochs: int
    position: Position = field(default_factory=Position)

    @property
    def num_steps(self) -> int:
        """Steps in all."""
        return self.epochs * len(self.loader)

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
        while position.epoch < self.epochs:
            self.model.train()
            clock = time.perf_counter()
            for batch in self.loader.epoch(position.epoch, position.batch):
                lr = self.set_learning_rate()
                images, labels = batch.images.to(device), batch.labels.to(device)
                logits = self.model(images)  # (N, C)
                loss = self.loss(logits, labels)
                self.check_finite(loss, batch)
                self.fabric.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                seconds, clock = time.perf_counter() - clock, time.perf_counter()
                position.batch += 1
                position.add(
                    images=len(labels),
                    loss=loss.item() * len(labels),
                    correct=(logits.argmax(-1) == labels).sum().item(),
                    seconds=seconds,
                )
                progress.step(loss.item(), seconds, len(labels))
                if stop.is_set and position.batch < len(self.loader):
                    return False
            metrics = epoch_metrics(position, lr)
            position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
            on_epoch(metrics)
            if stop.is_set:
                break
        return position.epoch == self.epochs

    def set_learning_rate(self) -> float:
        """Give each group its learning rate for this step; return the highest."""
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


def epoch_metrics(position: Position, lr: float) -> Metrics:
    """Return the record of an epoch from its sums."""
    sums = position.sums
    return {
        "epoch": position.epoch + 1,
        "loss": sums["loss"] / sums["images"],
        "train_accuracy": sums["correct"] / sums["images"],
        "lr": lr,
        "seconds": round(sums["seconds"], 3),
        "images_per_second": round(sums["images"] / max(sums["seconds"], 1e-9), 1),
    }
