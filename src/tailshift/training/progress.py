"""Progress on a terminal, silence elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from tailshift.training.distributed import is_first_process


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
