"""Progress of a run, shown on a terminal, in a log or by another process."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from tailshift.config import RunConfig
from tailshift.data import FeatureSplit, LongTailedData
from tailshift.text import printable
from tailshift.training.distributed import is_first_process
from tailshift.training.loop import Metrics


def plan_lines(
    config: RunConfig, data: LongTailedData, *, is_filled: bool = False
) -> list[str]:
    """Return lines that describe the data, the network and the method of a run.

    Args:
        config: Configuration of the run.
        data: Data of the run.
        is_filled: Whether the weights come from a checkpoint.
    """
    splits = {"training": data.train, "validation": data.val, "test": data.test}
    images = [f"{len(split or ()):,} {name}" for name, split in splits.items()]
    size, stages = data.image_size, config.method.stages()
    lengths = [f"{stage.title} {config.stage_epochs(stage)}" for stage in stages]
    each = f" ({', '.join(lengths)})" if len(stages) > 1 else ""
    how = getattr(data.train, "preparation", getattr(data.train, "augmentation", ""))
    length = (
        f"{config.own_epochs} epochs{each}, {config.train.batch_size} images per step"
    )
    if isinstance(data.train, FeatureSplit):
        dim, views = data.train.features.shape[2], len(data.train.features)
        how = f"{dim} features of each" + (f" of {views} views" if views > 1 else "")
        if config.optim.name == "lbfgs":
            length = f"at once if its loss is smooth, else {length}"
    precision = config.train.precision
    weights = _weights(config, is_filled=is_filled)
    if precision not in ("auto", "32-true"):
        weights += f", in {precision}"
    return [
        f"data: {data.name}, {data.num_classes} classes, {', '.join(images)} images",
        f"images: {size} × {size} pixels; {how}",
        f"network: {config.model.name}, {weights}",
        f"method: {config.method.title}, {length}",
    ]


def _weights(config: RunConfig, *, is_filled: bool) -> str:
    """Return the source of a network's weights."""
    model, start = config.model, config.train.start_from
    if is_filled:
        return "weights from the checkpoint"
    if start or model.weights:
        return f"weights from {start or model.weights}"
    if model.pretrained and model.name.startswith("timm:"):
        where = ", if they can be had" if model.pretrained == "if_available" else ""
        return f"published weights{where}"
    return "random weights"


def epoch_line(metrics: Metrics, num_epochs: int) -> str:
    """Return an epoch's metrics as a log line.

    Args:
        metrics: A record of ``metrics.jsonl``.
        num_epochs: Total number of epochs of the run.

    Example:
        >>> metrics = {"epoch": 3, "loss": 0.51, "train_accuracy": 0.8, "seconds": 1.2}
        >>> epoch_line(metrics, 30)
        'epoch 3/30: loss 0.510, train 80.0 %, 1.2 s'
    """
    parts = [
        f"loss {metrics['loss']:.3f}",
        f"train {100 * metrics['train_accuracy']:.1f} %",
        _validation_part(metrics),
        f"{metrics['seconds']:.1f} s",
    ]
    shown = ", ".join(part for part in parts if part)
    return f"epoch {metrics['epoch']}/{num_epochs}: {shown}"


def _validation_part(metrics: Metrics) -> str:
    """Return the validation accuracy, overall and by class group, if known.

    Example:
        >>> _validation_part({"val_accuracy": 0.7, "val_accuracy_few": 0.25})
        'val 70.0 % (few 25.0)'
    """
    if "val_accuracy" not in metrics:
        return ""
    prefix = "val_accuracy_"
    groups = [
        f"{key.removeprefix(prefix)} {100 * value:.1f}"
        for key, value in metrics.items()
        if key.startswith(prefix)
    ]
    each = f" ({', '.join(groups)})" if groups else ""
    return f"val {100 * metrics['val_accuracy']:.1f} %{each}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    Example:
        >>> duration(42), duration(750), duration(12_000), duration(200_000)
        ('42 s', '12 min 30 s', '3 h 20 min', '2 d 7 h')
    """
    rest = round(seconds)
    units = []
    for name, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, length)
        units.append((amount, name))
    first = next((i for i, (amount, _) in enumerate(units) if amount), len(units) - 1)
    shown = [f"{amount} {name}" for amount, name in units[first : first + 2] if amount]
    return " ".join(shown) or "0 s"


_TIMED_STEPS, _TIMED_SECONDS = 10, 5.0
"""Steps, or seconds, to time before the remaining time is printed; the first step
is left out."""


NO_FIELDS: dict[str, Any] = {"loss": "", "rate": "", "val": ""}
"""Fields of a progress bar before the first step."""


class TrainingProgress:
    """Progress bar over a run's steps, with the loss and images per second.

    Args:
        bar: Bar on a terminal, or in another process.
        num_steps: Number of steps of the stage.
        title: Title of the run.
        done: Number of finished steps.
        is_verbose: Whether to print the remaining time and, without a terminal, one
            line per epoch.
    """

    def __init__(
        self,
        bar: "Progress | _RelayedBar",
        num_steps: int,
        title: str,
        done: int,
        *,
        is_verbose: bool = False,
    ) -> None:
        self._bar = bar
        self._task = bar.add_task(
            printable(title), total=num_steps, completed=done, **NO_FIELDS
        )
        self._is_verbose = is_verbose
        self._steps_left = num_steps - done
        self._seconds: list[float] | None = [] if is_verbose else None

    def step(self, loss: float, seconds: float, images: int) -> None:
        """Advance by one step with this loss, wall time and number of images."""
        self._bar.update(
            self._task,
            advance=1,
            loss=f"loss {loss:.3f}",
            rate=f"{images / max(seconds, 1e-9):,.0f} images/s",
        )
        self._steps_left -= 1
        if self._seconds is not None:
            self._seconds.append(seconds)
            self._print_time_left()

    def epoch(self, metrics: Metrics, num_epochs: int) -> None:
        """Show an epoch's accuracy on the bar, or print all its metrics as a line."""
        self._bar.update(self._task, val=_validation_part(metrics))
        if self._is_verbose and self._bar.disable:
            print_line(self._bar.console, epoch_line(metrics, num_epochs))

    def _print_time_left(self) -> None:
        """Print the remaining time once it is known."""
        timed = (self._seconds or [])[1:]  # the first step takes longer
        if not timed or (len(timed) < _TIMED_STEPS and sum(timed) < _TIMED_SECONDS):
            return
        self._seconds = None
        rest = self._steps_left * sum(timed) / len(timed)
        text = f"about {duration(rest)} left for {self._steps_left:,} steps"
        print_line(self._bar.console, text)


def print_line(console: Console, text: str) -> None:
    """Print a line as it is, above the progress bar if there is one."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def training_progress(
    title: str,
    num_steps: int,
    *,
    done: int = 0,
    console: Console | None = None,
    is_verbose: bool = False,
) -> Iterator[TrainingProgress]:
    """Show a progress bar while the block runs, if standard error is a terminal.

    With several processes, only the first one shows it.
    """
    console = console or Console(stderr=True)
    if _relay is not None and is_first_process():
        relayed = _RelayedBar(_relay, console)
        yield TrainingProgress(relayed, num_steps, title, done, is_verbose=is_verbose)
        return
    with progress_bar(console) as bar:
        yield TrainingProgress(bar, num_steps, title, done, is_verbose=is_verbose)


def progress_bar(console: Console) -> Progress:
    """Return a bar with loss, validation accuracy and images per second."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[val]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    disable = not (console.is_terminal and is_first_process())
    return Progress(*columns, console=console, disable=disable, transient=True)


RECORD = "\x1e"
"""Marks a line of output as progress for another process, in JSON."""
RELAY_SECONDS = 0.1
"""Minimum time between two such lines."""

_relay: IO[str] | None = None


def relay_progress(stream: IO[str]) -> None:
    """Send this process's progress to another process, which shows it.

    Args:
        stream: Stream that the other process reads line by line.
    """
    global _relay
    _relay = stream


class _RelayedBar:
    """Replaces the progress bar if another process shows it.

    Args:
        stream: Stream for the progress.
        console: Console for lines of text.
    """

    disable = True

    def __init__(self, stream: IO[str], console: Console) -> None:
        self.console = console
        self._stream, self._fields, self._sent = stream, dict[str, Any](), 0.0

    def add_task(self, title: str, **fields: Any) -> TaskID:
        """Send the state of the run; the other process has its own title."""
        self._fields = fields
        self._send()
        return TaskID(0)

    def update(self, task: TaskID, advance: int = 0, **fields: Any) -> None:
        """Send an advance if it is due."""
        self._fields |= fields
        self._fields["completed"] += advance
        is_last = self._fields["completed"] == self._fields["total"]
        if is_last or time.monotonic() - self._sent > RELAY_SECONDS:
            self._send()

    def _send(self) -> None:
        self._sent = time.monotonic()
        with suppress(OSError):  # if the other process ends, a signal arrives
            write_record(self._stream, self._fields)


def write_record(stream: IO[str], fields: Mapping[str, Any]) -> None:
    """Write a line for the process that shows this progress."""
    print(f"{RECORD}{json.dumps(fields)}", file=stream, flush=True)
