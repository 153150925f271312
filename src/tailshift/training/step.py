"""Training steps with mixup, gradient accumulation or several processes."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from tailshift.data import Batch
from tailshift.data.randomness import Stream
from tailshift.losses import loss_over_processes, mixup, mixup_loss
from tailshift.losses.base import LossFunction
from tailshift.models import Head
from tailshift.processes import Processes
from tailshift.training.distributed import own_draws, same_draws, step_key
from tailshift.workers import StopRequest

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Mixed:
    """Images of a training step, with their labels."""

    images: Tensor
    labels: Tensor
    other_labels: Tensor | None = None
    """Labels of the images blended in; None without mixup."""
    share: float = 1.0
    """Weight of the original image in the blend."""
    all_labels: Tensor | None = None
    """Labels of all processes, if they are known."""

    def loss(self, loss: LossFunction, output: Tensor) -> Tensor:
        """Return the loss of the model's output for the images."""
        if self.other_labels is None:
            return loss(output, self.labels)
        return mixup_loss(loss, output, self.labels, self.other_labels, self.share)


def mix(images: Tensor, labels: Tensor, alpha: float, *, num_parts: int = 1) -> Mixed:
    r"""Return the batch blended by a share drawn from Beta(α, α) [zhang2018].

    The draws come from PyTorch's default generator, whose state is part of a
    checkpoint. With :math:`\alpha = 0` nothing is drawn and the batch is unchanged.

    Args:
        images: Shape (N, ...).
        labels: Shape (N,).
        alpha: :math:`\alpha \ge 0`; the larger, the closer the weights are to 1/2.
        num_parts: Number of stacked batches; images are blended within their own.

    Example:
        >>> mixed = mix(torch.eye(4), torch.arange(4), 1.0, num_parts=2)
        >>> torch.equal(mixed.other_labels // 2, mixed.labels // 2)
        True
    """
    if alpha == 0:
        return Mixed(images, labels)
    concentration = torch.tensor(alpha, dtype=torch.float64)
    share = float(torch.distributions.Beta(concentration, concentration).sample())
    size = len(labels) // num_parts
    parts = [torch.randperm(size) + size * part for part in range(num_parts)]
    permutation = torch.cat(parts).to(labels.device)
    blends, other_labels = mixup(images, labels, share, permutation)
    return Mixed(blends, labels, other_labels, share)


class _MicroBatch(NamedTuple):
    """A micro-batch and the weight of its loss."""

    samples: Mixed
    weight: float
    """Fraction of the batch's samples that it has, over all processes."""


def micro_batches(
    mixed: Mixed, count: int, processes: Processes, *, num_parts: int = 1
) -> list[_MicroBatch]:
    """Split a batch into micro-batches whose sizes differ by at most one sample.

    Every process gets the same number of micro-batches; some of them may be empty.

    Args:
        mixed: This process's part of the batch.
        count: Maximum number of micro-batches; there are fewer if samples are few.
        processes: Processes that train together.
        num_parts: Number of stacked batches, in the batch and in each micro-batch.

    Example:
        >>> mixed = Mixed(torch.zeros(5, 1), torch.arange(5))
        >>> pieces = micro_batches(mixed, 2, Processes())
        >>> [piece.samples.labels.tolist() for piece in pieces]
        [[0, 2, 4], [1, 3]]
        >>> [piece.weight for piece in pieces]
        [0.6, 0.4]
    """
    if count == 1:
        return [_MicroBatch(mixed, 1.0)]
    rows = torch.arange(len(mixed.labels), device=mixed.labels.device)
    by_part = rows.view(num_parts, -1)
    pieces = [_rows(mixed, by_part[:, m::count].flatten()) for m in range(count)]
    sizes = torch.tensor([len(p.labels) for p in pieces], device=rows.device)
    totals = processes.sum(sizes).tolist()
    return [
        _MicroBatch(piece, total / sum(totals))
        for piece, total in zip(pieces, totals, strict=True)
        if total
    ]


def _rows(mixed: Mixed, rows: Tensor) -> Mixed:
    others = mixed.other_labels
    return replace(
        mixed,
        images=mixed.images.index_select(0, rows),
        labels=mixed.labels.index_select(0, rows),
        other_labels=None if others is None else others.index_select(0, rows),
        all_labels=None,
    )


def joined(pieces: Sequence[Mixed]) -> Mixed:
    """Return the concatenated labels of all micro-batches, without their images."""
    first = pieces[0]
    others = [p.other_labels for p in pieces if p.other_labels is not None]
    return replace(
        first,
        images=first.images[:0],
        labels=torch.cat([piece.labels for piece in pieces]),
        other_labels=torch.cat(others) if others else None,
    )


def outputs_without_gradient(model: nn.Module, pieces: Sequence[Mixed]) -> Tensor:
    """Return the logits of all micro-batches, (n, C); leave the model unchanged.

    Buffers, such as batch statistics, and random generators are restored: a second
    forward pass gives the same logits.

    Args:
        model: Model in training mode.
        pieces: Micro-batches of a batch.
    """
    before = [buffer.clone() for buffer in model.buffers()]
    device = pieces[0].images.device
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        logits = [_logits(model(piece.images)) for piece in pieces]
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.copy_(old)
    return torch.cat(logits)


def output_gradients(
    loss_of: Callable[[Tensor], Tensor], logits: Tensor, pieces: Sequence[Mixed]
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of the whole batch, and its gradient per micro-batch.

    Args:
        loss_of: Maps logits (n, C) to a scalar.
        logits: Logits of all micro-batches, shape (n, C).
        pieces: Micro-batches, which give the number of rows of each gradient.
    """
    logits = logits.requires_grad_()
    loss = loss_of(logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    sizes = [len(piece.labels) for piece in pieces]
    return loss.detach(), list(torch.split(gradient, sizes))


def _logits(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise ValueError(
            "`train.exact_accumulation` needs a network that returns only logits in "
            f"training, but this one returns {type(output).__name__}. Drop it, or "
            "use smaller batches."
        )
    return output


def _logits_of(output: Any) -> Tensor:
    """Return the logits of a network's training output: a tensor, or in a tuple."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


@dataclass
class StepSums:
    """Loss and counts of a step, over all processes."""

    loss: float = 0.0
    """Mean over the batch."""
    correct: int = 0
    images: int = 0
    images_read: int = 0
    """Larger than `images` if batches are stacked."""
    is_stopped: bool = False
    """Whether any process has a stop request."""
    is_preemption: bool = False

    @classmethod
    def of(cls, loss: Tensor, output: Any, labels: Tensor) -> "StepSums":
        """Return the sums of this process; waits for the device.

        Args:
            loss: Loss, a scalar.
            output: Output of the network, with logits (N, C).
            labels: Class indices (N,), or (kN,) of k stacked batches. Their images are
                mixed, so a prediction is correct if it is the label of any of them.
        """
        predicted = _logits_of(output).argmax(-1)  # (N,)
        num = len(predicted)
        is_right = predicted == labels.view(len(labels) // max(num, 1), num)  # (k, N)
        return cls(loss.item(), int(is_right.any(0).sum()), num, len(labels))

    def __add__(self, other: "StepSums") -> "StepSums":
        """Return the sums of two micro-batches."""
        return StepSums(
            self.loss + other.loss,
            self.correct + other.correct,
            self.images + other.images,
            self.images_read + other.images_read,
            self.is_stopped or other.is_stopped,
            self.is_preemption or other.is_preemption,
        )


@dataclass(frozen=True)
class DividedStep:
    """Forward and backward pass with several processes, accumulation or mixup.

    The training loop itself does both for a plain batch in one process; for such a
    batch the results are identical.
    """

    fabric: "Fabric"
    model: Any
    """Model as set up by Fabric."""
    loss: nn.Module
    processes: Processes
    accumulate: int = 1
    """Gradient accumulation steps."""
    is_exact: bool = False
    """Whether the loss is that of the whole batch; costs a second forward pass."""
    num_parts: int = 1
    """Number of stacked batches."""
    mixup: float = 0.0
    """α of mixup; 0 disables mixup."""
    seed: int = 0
    """Seed of the processes' random draws, common or individual."""

    def __post_init__(self) -> None:
        for head in self.heads:
            head.gather_batches(self.processes)

    @cached_property
    def heads(self) -> list[Head]:
        """Heads to notify at the end of a batch, as no forward pass sees all of it."""
        if self.processes.world_size == 1 and self.accumulate == 1:
            return []
        return [m for m in self.model.modules() if isinstance(m, Head)]

    def run(
        self,
        batch: Batch,
        number: int,
        stop: StopRequest,
        check: Callable[[float], None],
    ) -> StepSums:
        """Add a batch's gradients to the parameters; return its loss and counts.

        Args:
            batch: This process's part of the batch.
            number: Number of finished steps; it seeds the draws.
            stop: Stop request; one on any process applies to all.
            check: Called with each loss before the backward pass.
        """
        mixed = self.mix(batch, number)
        is_shared, rank = self.processes.world_size > 1, self.fabric.global_rank
        key = step_key(Stream.STEP, seed=self.seed, step=number, rank=rank)
        with own_draws(key, is_on=is_shared):
            pieces = micro_batches(
                mixed, self.accumulate, self.processes, num_parts=self.num_parts
            )
            if self.is_exact and len(pieces) > 1:
                seen = self._run_exactly(pieces, stop, check)
            else:
                seen = self._run_pieces(pieces, stop, check)
            for head in self.heads:
                head.end_batch()
        return seen

    def mix(self, batch: Batch, number: int) -> Mixed:
        """Return the batch on the device, blended if mixup is on."""
        device, is_shared = self.fabric.device, self.processes.world_size > 1
        images, labels = batch.images.to(device), batch.labels.to(device)
        key = step_key(Stream.MIX, seed=self.seed, step=number)
        with same_draws(key, is_on=is_shared and self.mixup > 0):
            mixed = mix(images, labels, self.mixup, num_parts=self.num_parts)
        if batch.all_labels is None:
            return mixed
        return replace(mixed, all_labels=batch.all_labels.to(device))

    def batch_loss(self, samples: Mixed) -> LossFunction:
        """Return the loss of this process's samples, weighted for the average."""
        if self.processes.world_size == 1:
            return self.loss
        processes = self.processes.knowing(samples.labels, samples.all_labels)
        return partial(_over, self.loss, processes)

    def _run_pieces(
        self,
        pieces: list[_MicroBatch],
        stop: StopRequest,
        check: Callable[[float], None],
    ) -> StepSums:
        sums = StepSums()
        for number, (piece, weight) in enumerate(pieces, 1):
            is_more = number < len(pieces)
            with self.fabric.no_backward_sync(self.model, enabled=is_more):
                output = self.model(piece.images)
                loss = piece.loss(self.batch_loss(piece), output)
                loss = loss if len(pieces) == 1 else weight * loss
                seen = self._seen(loss, output, piece.labels, stop)
                check(seen.loss)
                self.fabric.backward(loss)
            sums += seen
        return sums

    def _run_exactly(
        self,
        pieces: list[_MicroBatch],
        stop: StopRequest,
        check: Callable[[float], None],
    ) -> StepSums:
        samples = [piece.samples for piece in pieces]
        whole = joined(samples)
        logits = outputs_without_gradient(self.model, samples)
        loss, gradients = output_gradients(
            lambda logits: whole.loss(self.batch_loss(whole), logits), logits, samples
        )
        seen = self._seen(loss, logits, whole.labels, stop)
        check(seen.loss)
        for number, (piece, gradient) in enumerate(
            zip(samples, gradients, strict=True), 1
        ):
            is_more = number < len(pieces)
            with self.fabric.no_backward_sync(self.model, enabled=is_more):
                output = self.model(piece.images)
                self.fabric.backward(output, gradient=gradient.to(output.dtype))
        return seen

    def _seen(
        self, loss: Tensor, output: Any, labels: Tensor, stop: StopRequest
    ) -> StepSums:
        """Return the sums over processes; the loss is the average of their losses."""
        mine = StepSums.of(loss, output, labels)
        mine.is_stopped, mine.is_preemption = stop.is_set, stop.is_preemption
        if self.processes.world_size == 1:
            return mine
        values = torch.tensor(astuple(mine), dtype=torch.float64, device=loss.device)
        total, *rest = self.processes.sum(values).tolist()
        correct, images, images_read = map(int, rest[:3])
        is_stopped, is_preemption = map(bool, rest[3:])
        loss_of_all = total / self.processes.world_size
        return StepSums(
            loss_of_all, correct, images, images_read, is_stopped, is_preemption
        )


def _over(loss: nn.Module, processes: Processes, output: Any, labels: Tensor) -> Tensor:
    return loss_over_processes(loss, output, labels, processes)
