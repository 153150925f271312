"""One step of training: forward and backward over a batch, whoever has its samples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tailshift.losses import Processes, loss_over_processes
from tailshift.training.accumulation import (
    MicroBatch,
    joined,
    micro_batches,
    output_gradients,
    outputs_without_gradient,
)
from tailshift.training.interrupt import StopRequest
from tailshift.training.mixing import Mixed

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@runtime_checkable
class FollowsBatches(Protocol):
    """A head that keeps an average over batches, which may be read in pieces."""

    def gather_batches(self, processes: Processes) -> None:
        """Wait for `end_batch` from here on."""

    def end_batch(self) -> None:
        """Take in what all processes have read of the batch."""


@dataclass
class StepSums:
    """What a step saw, over all processes."""

    loss: float = 0.0
    """Mean over the batch."""
    correct: int = 0
    images: int = 0
    images_read: int = 0
    """More than `images` where batches are stacked."""
    is_stopped: bool = False
    """Whether any process is asked to stop."""
    is_preemption: bool = False

    def __add__(self, other: "StepSums") -> "StepSums":
        """Return the sums of two pieces of a batch."""
        return StepSums(
            self.loss + other.loss,
            self.correct + other.correct,
            self.images + other.images,
            self.images_read + other.images_read,
            self.is_stopped or other.is_stopped,
            self.is_preemption or other.is_preemption,
        )


@dataclass(frozen=True)
class Step:
    """Runs a batch forward and backward; the optimiser comes after it."""

    fabric: "Fabric"
    model: Any
    """As Fabric has set it up."""
    loss: nn.Module
    processes: Processes
    accumulate: int = 1
    """Pieces that a process reads its part of a batch in."""
    is_exact: bool = False
    """Whether the loss is of the whole batch, at the price of a second forward."""
    num_parts: int = 1
    """Batches that are stacked."""

    def __post_init__(self) -> None:
        if self.processes.world_size > 1 or self.accumulate > 1:
            for head in self.followers:
                head.gather_batches(self.processes)

    @property
    def followers(self) -> list[FollowsBatches]:
        """The heads that are told when a batch ends."""
        return [m for m in self.model.modules() if isinstance(m, FollowsBatches)]

    def batch_loss(self, samples: Mixed) -> Callable[[Any, Tensor], Tensor]:
        """Return the loss of this process's samples, weighted for the average."""
        if self.processes.world_size == 1:
            return self.loss
        processes = self.processes.knowing(samples.labels, samples.all_labels)
        return partial(_over, self.loss, processes)

    def run(
        self, mixed: Mixed, stop: StopRequest, check: Callable[[Tensor], None]
    ) -> StepSums:
        """Add a batch's gradients to the parameters; return what it saw.

        Args:
            mixed: This process's part of the batch.
            stop: Asked for on any process, it holds for all.
            check: Called with each loss before it goes backward.
        """
        pieces = micro_batches(
            mixed, self.accumulate, self.processes, num_parts=self.num_parts
        )
        if self.is_exact and len(pieces) > 1:
            sums = self._run_exactly(pieces, stop, check)
        else:
            sums = self._run_pieces(pieces, stop, check)
        if self.processes.world_size > 1 or self.accumulate > 1:
            for head in self.followers:
                head.end_batch()
        return sums

    def _run_pieces(
        self,
        pieces: list[MicroBatch],
        stop: StopRequest,
        check: Callable[[Tensor], None],
    ) -> StepSums:
        sums = StepSums()
        for number, (piece, weight) in enumerate(pieces, 1):
            is_more = number < len(pieces)
            with self.fabric.no_backward_sync(self.model, enabled=is_more):
                output = self.model(piece.images)
                loss = piece.loss(self.batch_loss(piece), output)
                loss = loss if len(pieces) == 1 else weight * loss
                seen = self._seen(loss, output, piece.labels, stop)
                check(loss.new_tensor(seen.loss))
                self.fabric.backward(loss)
            sums += seen
        return sums

    def _run_exactly(
        self,
        pieces: list[MicroBatch],
        stop: StopRequest,
        check: Callable[[Tensor], None],
    ) -> StepSums:
        samples = [piece.samples for piece in pieces]
        whole = joined(samples)
        logits = outputs_without_gradient(self.model, samples)
        loss, gradients = output_gradients(
            lambda logits: whole.loss(self.batch_loss(whole), logits), logits, samples
        )
        sums = self._seen(loss, logits, whole.labels, stop)
        check(loss.new_tensor(sums.loss))
        for number, (piece, gradient) in enumerate(
            zip(samples, gradients, strict=True), 1
        ):
            is_more = number < len(pieces)
            with self.fabric.no_backward_sync(self.model, enabled=is_more):
                output = self.model(piece.images)
                self.fabric.backward(output, gradient=gradient.to(output.dtype))
        return sums

    def _seen(
        self, loss: Tensor, output: Any, labels: Tensor, stop: StopRequest
    ) -> StepSums:
        """Return the sums over processes; the average of their losses is the loss."""
        logits = output if isinstance(output, Tensor) else output.logits
        own = labels[: len(logits)]
        correct = (logits.argmax(-1) == own).sum().item()
        mine = [loss.item(), correct, len(own), len(labels)]
        values = [*mine, stop.is_set, stop.is_preemption]
        if self.processes.world_size > 1:
            sums = torch.tensor(values, dtype=torch.float64, device=loss.device)
            values = self.processes.sum(sums).tolist()
        return StepSums(
            values[0] / self.processes.world_size,
            int(values[1]),
            int(values[2]),
            int(values[3]),
            bool(values[4]),
            bool(values[5]),
        )


def _over(loss: nn.Module, processes: Processes, output: Any, labels: Tensor) -> Tensor:
    return loss_over_processes(loss, output, labels, processes)
