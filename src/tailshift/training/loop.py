"""The training loop, read top to bottom, its progress, and the search for NaN."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from torch import Tensor, nn
from torch.optim import Optimizer

from tailshift.data import Batch, Batches
from tailshift.data.randomness import Stream
from tailshift.losses import as_loss
from tailshift.models import Head
from tailshift.processes import Processes
from tailshift.runs.checkpoint import Position
from tailshift.runs.directory import NotFiniteError, Place
from tailshift.training.distributed import (
    broken_images,
    everyone_of,
    is_first_process,
    own_draws,
    same_draws,
    step_key,
)
from tailshift.training.interrupt import StopRequest
from tailshift.training.schedules import Schedule
from tailshift.training.step import Mixed, Step, StepSums, mix

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class TrainingProgress:
    """A bar over a run's steps, with the loss and images per second."""

    def __init__(self, bar: Progress, num_steps: int, title: str, done: int) -> None:
        self._bar = bar
        self._task = bar.add_task(
            title, total=num_steps, completed=done, loss="", rate=""
        )

    def step(self, loss: float, seconds: float, images: int) -> None:
        """Advance by one step, which took that long for so many images."""
        self._bar.update(
            self._task,
            advance=1,
            loss=f"loss {loss:.3f}",
            rate=f"{images / max(seconds, 1e-9):,.0f} images/s",
        )


@contextmanager
def training_progress(
    title: str, num_steps: int, *, done: int = 0, console: Console | None = None
) -> Iterator[TrainingProgress]:
    """Show a bar while the block runs, if standard error is a terminal.

    Of several processes the first shows it.
    """
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    disable = not (console.is_terminal and is_first_process())
    with Progress(*columns, console=console, disable=disable, transient=True) as bar:
        yield TrainingProgress(bar, num_steps, title, done)


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


Metrics = dict[str, Any]


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
    mixup: float = 0.0
    """α of mixup; 0 blends nothing."""
    num_parts: int = 1
    """Batches that a step reads stacked."""
    processes: Processes = field(default_factory=Processes)
    """Those that share each batch."""
    accumulate: int = 1
    """Pieces that a process reads its part of a batch in."""
    is_exact: bool = False
    """Whether the pieces' loss is that of the whole batch."""
    seed: int = 0
    """Of what several processes draw, alike or each its own."""
    position: Position = field(default_factory=Position)
    sample_ids: Tensor = field(
        default_factory=lambda: torch.empty(0, dtype=torch.int64)
    )
    """Of the batch under way, on this process."""

    @property
    def place(self) -> Place:
        """The step under way."""
        return Place(self.step, self.position.epoch + 1, self.sample_ids.tolist())

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
        on_step: Callable[[], None] = lambda: None,
    ) -> bool:
        """Train to the last epoch; return False if a stop was asked for before.

        Args:
            on_epoch: Called with the metrics of each epoch when it is done.
            stop: Checked after each step; an epoch whose last step is done is recorded.
            progress: Told of each step.
            on_step: Called after each step but an epoch's last.
        """
        position, optimizer, step = self.position, self.optimizer, self.build_step()
        while position.epoch < self.epochs:
            assert optimizer is not None
            self.begin_epoch()
            clock = time.perf_counter()
            for batch in self.loader.epoch(position.epoch, position.batch):
                lr = self.set_learning_rate()
                mixed = self.mix(batch)
                self.sample_ids = batch.sample_ids
                with self.own_draws():
                    done = step.run(mixed, stop, self.check_finite)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                seconds, clock = time.perf_counter() - clock, time.perf_counter()
                position.batch += 1
                position.add(
                    images=done.images,
                    loss=done.loss * done.images,
                    correct=done.correct,
                    seconds=seconds,
                )
                progress.step(done.loss, seconds, done.images_read)
                if position.batch < len(self.loader):
                    if self.is_stopped(stop, done):
                        return False
                    on_step()
            metrics = epoch_metrics(position, self.epochs_done + 1, lr)
            if (skipped := broken_images(self.loader)) is not None:
                metrics["skipped_images"] = skipped
            position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
            on_epoch(metrics)
            if self.is_stopped(stop, done):
                break
        return position.epoch == self.epochs

    def build_step(self) -> Step:
        """Return what runs a batch forward and backward."""
        return Step(
            self.fabric,
            self.model,
            self.loss,
            self.processes,
            accumulate=self.accumulate,
            is_exact=self.is_exact,
            num_parts=self.num_parts,
        )

    def mix(self, batch: Batch) -> Mixed:
        """Return the batch on the device, blended where mixup is asked for."""
        device = self.fabric.device
        images, labels = batch.images.to(device), batch.labels.to(device)
        is_shared = self.processes.world_size > 1
        key = step_key(Stream.MIX, seed=self.seed, step=self.step)
        with same_draws(key, is_on=is_shared and self.mixup > 0):
            mixed = mix(images, labels, self.mixup, num_parts=self.num_parts)
        if batch.all_labels is None:
            return mixed
        return replace(mixed, all_labels=batch.all_labels.to(device))

    def own_draws(self) -> AbstractContextManager[None]:
        """Return what lets each of several processes draw for the step under way."""
        rank, is_on = self.fabric.global_rank, self.processes.world_size > 1
        key = step_key(Stream.STEP, seed=self.seed, step=self.step, rank=rank)
        return own_draws(key, is_on=is_on)

    def is_stopped(self, stop: StopRequest, done: StepSums) -> bool:
        """Say whether to stop after a step; several processes stop after the same."""
        if self.processes.world_size == 1:
            return stop.is_set
        stop.is_set |= done.is_stopped  # one that came meanwhile holds for the next
        stop.is_preemption |= done.is_preemption
        return done.is_stopped

    def begin_epoch(self) -> None:
        """Put the model into training, and tell what changes by the epoch of it."""
        self.model.train()
        for part in self.frozen:
            part.eval()
        epoch = self.position.epoch
        for part in self.model.modules():
            if isinstance(part, Head):
                part.begin_epoch(epoch, self.epochs)
        as_loss(self.loss).begin_epoch(epoch, self.epochs)

    def set_learning_rate(self) -> float:
        """Give each group its learning rate for this step; return the highest."""
        assert self.optimizer is not None
        factor = self.schedule(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["highest_lr"]
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    def check_finite(self, loss: Tensor) -> None:
        """Stop at a loss that is NaN or infinite, naming where it came up."""
        if torch.isfinite(loss):
            return
        everyone = everyone_of(self.sample_ids.tolist())  # all have the same loss
        if not everyone:
            raise ValueError(
                "a batch must have an image that can be read, but none of its images "
                "can. Fetch them again, or take larger batches."
            )
        place = self.place._replace(sample_ids=everyone)
        raise NotFiniteError(f"the loss is {loss.item()}", place)


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
