"""The training loop, and the search for the source of a NaN."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tailshift.data import Batches
from tailshift.losses import as_loss
from tailshift.methods.schedules import Schedule
from tailshift.models import Head
from tailshift.runs.checkpoint import Position
from tailshift.runs.directory import NotFiniteError, TrainingPosition
from tailshift.training.distributed import broken_images, gather_ids
from tailshift.training.step import DividedStep, StepSums
from tailshift.workers import StopRequest

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Metrics = dict[str, Any]


class Elapsed(NamedTuple):
    """Wall-clock and CPU time."""

    seconds: float
    processor_seconds: float
    """CPU time of all threads; ``metrics.jsonl`` uses this name."""


class Stopwatch:
    """Measures the time since it was created, or since the last lap."""

    def __init__(self) -> None:
        self._began = Elapsed(time.perf_counter(), time.process_time())

    def lap(self) -> Elapsed:
        """Return the elapsed time and start again."""
        before, self._began = (
            self._began,
            Elapsed(time.perf_counter(), time.process_time()),
        )
        return Elapsed(*(b - a for a, b in zip(before, self._began, strict=True)))


class WeightAverage:
    r"""Exponential moving average of a model's weights and batch statistics.

    The decay at step :math:`t`, counted from 0, is
    :math:`\min(d, \frac{1 + t}{10 + t})`, so the random initial weights are soon
    forgotten. Integer buffers, such as the number of batches, are copied.

    Args:
        model: Model whose parameters and buffers are read at each update.
        decay: Maximum decay :math:`d`.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> average = WeightAverage(model, 0.995)
        >>> before = model.weight.item()
        >>> _ = nn.init.constant_(model.weight, 2.0)
        >>> average.update(0)
        >>> round(average.model.weight.item() - 0.1 * before, 6)
        1.8
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._source = model
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the model's weights after the given step."""
        kept = min(self.decay, (1 + step) / (10 + step))
        pairs = list(zip(_tensors(self.model), _tensors(self._source), strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        averaged, current = zip(*floats, strict=True)
        torch._foreach_lerp_(averaged, current, 1 - kept)
        for mine, theirs in pairs:
            if not mine.is_floating_point():
                mine.copy_(theirs)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return chain(model.parameters(), model.buffers())


@dataclass
class Trainer:
    """Training loop of one stage, with its model, data and position."""

    fabric: "Fabric"
    model: nn.Module
    loss: nn.Module
    optimizer: Optimizer | None
    """None if the stage has no epochs."""
    schedule: Schedule
    loader: Batches
    epochs: int
    frozen: tuple[nn.Module, ...] = ()
    """Parts of the model that keep their weights and batch statistics."""
    epochs_before: int = 0
    """Epochs of the previous stages, for the metrics."""
    divided: DividedStep | None = None
    """Step for several processes, gradient accumulation, mixup or stacked batches."""
    average: WeightAverage | None = None
    """Averaged weights that are evaluated and saved, with ``train.ema``."""
    clip_norm: float | None = None
    """Maximum gradient norm; larger gradients are clipped."""
    position: Position = field(default_factory=Position)
    sample_ids: Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.int64)
    )
    """Sample ids of the current batch, on this process."""

    def fit(
        self,
        *,
        on_epoch: Callable[[Metrics], None],
        stop: StopRequest,
        log: Callable[[float, float, int], None] = lambda loss, seconds, images: None,
        on_step: Callable[[], None] = lambda: None,
    ) -> bool:
        """Train until the last epoch; return False if stopped before.

        Args:
            on_epoch: Called with the metrics at the end of each epoch.
            stop: Checked after each step. An epoch whose last step is done is recorded.
            log: Called with each step's loss, wall time and number of images.
            on_step: Called after each step except the last one of an epoch.
        """
        position, optimizer, device = self.position, self.optimizer, self.fabric.device
        while position.epoch < self.epochs:
            assert optimizer is not None
            self.begin_epoch()
            watch = Stopwatch()
            for batch in self.loader.epoch(position.epoch, position.batch):
                lr = self.set_learning_rate()
                self.sample_ids = batch.sample_ids
                if self.divided is None:  # one process, the whole batch at once
                    images, labels = batch.images.to(device), batch.labels.to(device)
                    output = self.model(images)  # logits (N, C), or a tuple with them
                    loss = self.loss(output, labels)
                    seen = StepSums.of(loss, output, labels)
                    self.check_finite(seen.loss)
                    self.fabric.backward(loss)
                else:
                    seen = self.divided.run(batch, self.step, stop, self.check_finite)
                if self.clip_norm is not None:  # norm over the batch of all processes
                    self.clip_gradients(self.clip_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if self.average is not None:
                    self.average.update(self.step)
                taken = watch.lap()
                position.batch += 1
                position.add(
                    images=seen.images,
                    loss=seen.loss * seen.images,
                    correct=seen.correct,
                    **taken._asdict(),
                )
                log(seen.loss, taken.seconds, seen.images_read)
                if position.batch < len(self.loader):
                    if self.is_stopped(stop, seen):
                        return False
                    on_step()
            on_epoch(self.end_epoch(lr))
            if self.is_stopped(stop, seen):
                break
        return position.epoch == self.epochs

    def begin_epoch(self) -> None:
        """Set training mode and call ``begin_epoch`` of the heads and the loss."""
        self.model.train()
        for part in self.frozen:
            part.eval()
        epoch = self.position.epoch
        for module in self.model.modules():
            if isinstance(module, Head):
                module.begin_epoch(epoch, self.epochs)
        as_loss(self.loss).begin_epoch(epoch, self.epochs)

    def set_learning_rate(self) -> float:
        """Set each parameter group's learning rate; return the highest."""
        assert self.optimizer is not None
        factor = self.schedule(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["highest_lr"]
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    def clip_gradients(self, max_norm: float) -> None:
        """Clip the gradient norm; a non-finite gradient stays as it is."""
        assert self.optimizer is not None
        self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=max_norm, error_if_nonfinite=False
        )

    def check_finite(self, loss: float) -> None:
        """Raise an error that names the samples if the loss is NaN or infinite."""
        if math.isfinite(loss):
            return
        everyone = gather_ids(
            self.sample_ids.tolist()
        )  # the loss is the same on all processes
        if not everyone:
            raise ValueError(
                "a batch must have an image that can be read, but none of its images "
                "can. Fetch them again, or use larger batches."
            )
        place = self.place._replace(sample_ids=everyone)
        raise NotFiniteError(f"the loss is {loss}", place)

    def end_early(self) -> None:
        """Stop early: treat the current epoch as the last."""
        self.epochs = self.position.epoch

    def is_stopped(self, stop: StopRequest, seen: StepSums) -> bool:
        """Return whether to stop now; all processes stop after the same step."""
        if self.fabric.world_size == 1:
            return stop.is_set
        stop.is_set |= seen.is_stopped  # a later request applies to the next step
        stop.is_preemption |= seen.is_preemption
        return seen.is_stopped

    def end_epoch(self, lr: float) -> Metrics:
        """Return the metrics of the finished epoch and go to the next one."""
        position, sums = self.position, self.position.sums
        metrics: Metrics = {
            "epoch": self.epochs_done + 1,
            "loss": sums["loss"] / sums["images"],
            "train_accuracy": sums["correct"] / sums["images"],
            "lr": lr,
            "seconds": round(sums["seconds"], 3),
            "processor_seconds": round(sums.get("processor_seconds", 0.0), 3),
            "images_per_second": round(sums["images"] / max(sums["seconds"], 1e-9), 1),
        }
        if (skipped := broken_images(self.loader)) is not None:
            metrics["skipped_images"] = skipped
        position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
        return metrics

    @property
    def step(self) -> int:
        """Number of finished steps."""
        return self.position.epoch * len(self.loader) + self.position.batch

    @property
    def num_steps(self) -> int:
        """Total number of steps."""
        return self.epochs * len(self.loader)

    @property
    def epochs_done(self) -> int:
        """Number of finished epochs, including those of previous stages."""
        return self.epochs_before + self.position.epoch

    @property
    def place(self) -> TrainingPosition:
        """The current step, for error messages."""
        return TrainingPosition(
            self.step, self.position.epoch + 1, self.sample_ids.tolist()
        )


@contextmanager
def detect_anomalies(
    model: nn.Module, place: Callable[[], TrainingPosition]
) -> Iterator[None]:
    """Name the module or the operation that produced the first NaN.

    The forward pass reports the first module with a non-finite output. In the backward
    pass, PyTorch's anomaly detection reports the operation and warns with the line that
    called it. Both make training slower.

    Args:
        model: Model whose modules are checked.
        place: Returns the current step, for the error.
    """
    first: list[str] = []
    hooks = [
        module.register_forward_hook(_watch(name or "the model", first))
        for name, module in model.named_modules()
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        detection = torch.autograd.set_detect_anomaly(True)
    try:
        with detection:
            yield
    except FloatingPointError as error:
        if first:
            error.args = (f"{error} The first non-finite value came from {first[0]}.",)
        raise
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise NotFiniteError("a gradient is nan", place(), reason) from error
    finally:
        for hook in hooks:
            hook.remove()


def _watch(name: str, first: list[str]) -> Callable[..., None]:
    def look(module: nn.Module, given: Any, output: Any) -> None:
        if first or not isinstance(output, Tensor) or output.isfinite().all():
            return
        first.append(f"`{name}` ({type(module).__name__})")

    return look
