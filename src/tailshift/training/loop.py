"""The training loop, read top to bottom, and the search for NaN."""

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
from tailshift.runs.directory import NotFiniteError, Place
from tailshift.training.distributed import broken_images, everyone_of
from tailshift.training.step import DividedStep, StepSums
from tailshift.workers import StopRequest

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Metrics = dict[str, Any]


class Taken(NamedTuple):
    """What something took, by the clock and of the processor, all threads together."""

    seconds: float
    processor_seconds: float


class Stopwatch:
    """Tells what has been taken since it was made, or since the last lap."""

    def __init__(self) -> None:
        self._began = Taken(time.perf_counter(), time.process_time())

    def lap(self) -> Taken:
        """Return what was taken, and begin again."""
        before, self._began = (
            self._began,
            Taken(time.perf_counter(), time.process_time()),
        )
        return Taken(*(b - a for a, b in zip(before, self._began, strict=True)))


class WeightAverage:
    r"""An exponential moving average of a model's weights and batch statistics.

    After step :math:`t`, counted from 0, it keeps the share
    :math:`\min(d, \frac{1 + t}{10 + t})` of itself, so that the random weights of the
    beginning are soon forgotten. Counts, such as batches seen, are copied.

    Args:
        model: Its parameters and buffers are read at each update.
        decay: :math:`d`.

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
        """Move towards the model's weights, after a step of that number."""
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
    """What is trained, on what, and how far it has come."""

    fabric: "Fabric"
    model: nn.Module
    loss: nn.Module
    optimizer: Optimizer | None
    """None if the stage has no epochs."""
    schedule: Schedule
    loader: Batches
    epochs: int
    frozen: tuple[nn.Module, ...] = ()
    """Parts of the model that keep their weights and statistics."""
    epochs_before: int = 0
    """Epochs of the stages before, for the metrics."""
    divided: DividedStep | None = None
    """What reads a batch that several processes share, or in pieces, or mixed."""
    average: WeightAverage | None = None
    """What is evaluated and saved instead of the model, with ``train.ema``."""
    clip_norm: float | None = None
    """Largest length of a step's gradient."""
    position: Position = field(default_factory=Position)
    sample_ids: Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.int64)
    )
    """Sample ids of the batch under way, on this process."""

    def fit(
        self,
        *,
        on_epoch: Callable[[Metrics], None],
        stop: StopRequest,
        log: Callable[[float, float, int], None] = lambda loss, seconds, images: None,
        on_step: Callable[[], None] = lambda: None,
    ) -> bool:
        """Train to the last epoch; return False if a stop was asked for before.

        Args:
            on_epoch: Called with the metrics of each epoch when it is done.
            stop: Checked after each step; an epoch whose last step is done is recorded.
            log: Called with each step's loss, its seconds and how many images it read.
            on_step: Called after each step but an epoch's last.
        """
        position, optimizer, device = self.position, self.optimizer, self.fabric.device
        while position.epoch < self.epochs:
            assert optimizer is not None
            self.begin_epoch()
            watch = Stopwatch()
            for batch in self.loader.epoch(position.epoch, position.batch):
                lr = self.set_learning_rate()
                self.sample_ids = batch.sample_ids
                if self.divided is None:  # one process reads the batch whole, as it is
                    images, labels = batch.images.to(device), batch.labels.to(device)
                    output = self.model(images)  # (N, C), or a tuple that has them
                    loss = self.loss(output, labels)
                    seen = StepSums.of(loss, output, labels)
                    self.check_finite(seen.loss)
                    self.fabric.backward(loss)
                else:
                    seen = self.divided.run(batch, self.step, stop, self.check_finite)
                if self.clip_norm is not None:  # of the whole batch, on all processes
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
        """Put the model into training, and tell heads and loss of the epoch."""
        self.model.train()
        for part in self.frozen:
            part.eval()
        epoch = self.position.epoch
        for module in self.model.modules():
            if isinstance(module, Head):
                module.begin_epoch(epoch, self.epochs)
        as_loss(self.loss).begin_epoch(epoch, self.epochs)

    def set_learning_rate(self) -> float:
        """Give each group its learning rate for this step; return the highest."""
        assert self.optimizer is not None
        factor = self.schedule(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["highest_lr"]
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    def clip_gradients(self, most: float) -> None:
        """Shorten the gradient to a length; one that is not finite stays so."""
        assert self.optimizer is not None
        self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=most, error_if_nonfinite=False
        )

    def check_finite(self, loss: float) -> None:
        """Stop at a loss that is NaN or infinite, naming where it came up."""
        if math.isfinite(loss):
            return
        everyone = everyone_of(self.sample_ids.tolist())  # all have the same loss
        if not everyone:
            raise ValueError(
                "a batch must have an image that can be read, but none of its images "
                "can. Fetch them again, or use larger batches."
            )
        place = self.place._replace(sample_ids=everyone)
        raise NotFiniteError(f"the loss is {loss}", place)

    def end_early(self) -> None:
        """Take the epochs done for all there are."""
        self.epochs = self.position.epoch

    def is_stopped(self, stop: StopRequest, seen: StepSums) -> bool:
        """Return whether to stop after a step; all processes stop after the same."""
        if self.fabric.world_size == 1:
            return stop.is_set
        stop.is_set |= seen.is_stopped  # one that came meanwhile holds for the next
        stop.is_preemption |= seen.is_preemption
        return seen.is_stopped

    def end_epoch(self, lr: float) -> Metrics:
        """Return the record of the epoch that is done, and move on to the next."""
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
        """Steps done."""
        return self.position.epoch * len(self.loader) + self.position.batch

    @property
    def num_steps(self) -> int:
        """Steps in all."""
        return self.epochs * len(self.loader)

    @property
    def epochs_done(self) -> int:
        """Whole epochs done, those of the stages before counted."""
        return self.epochs_before + self.position.epoch

    @property
    def place(self) -> Place:
        """The step under way."""
        return Place(self.step, self.position.epoch + 1, self.sample_ids.tolist())


@contextmanager
def detecting_anomalies(model: nn.Module, place: Callable[[], Place]) -> Iterator[None]:
    """Name the part of a model, or the operation, that gave the first NaN.

    Forward, the first module whose output is not finite is named; backward, PyTorch's
    anomaly detection names the operation, and warns of the line that called it. Both
    make training slower.

    Args:
        model: Whose modules are watched.
        place: Tells the step under way, for the message.
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
            error.args = (f"{error} The first value not finite came from {first[0]}.",)
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
