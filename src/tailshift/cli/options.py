"""Options and progress displays that several commands share."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from tailshift.cli.app import TARGETS
from tailshift.text import printable

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
RunOrHeldOut = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|LOGITS",
        help="A run directory, or a file of labelled held-out logits.",
    ),
]
UnlabelledData = Annotated[
    Path,
    typer.Option(
        "--unlabelled",
        metavar="FILE|FOLDER",
        help="Logits of the same model (.npz, .npy, safetensors), or images.",
    ),
]
HeldOut = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labelled logits to calibrate on; default: the run's validation set.",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Classes that can occur, one name per line."),
]
EstimatorName = Annotated[
    str,
    typer.Option(
        "--estimator",
        metavar="NAME",
        help="Estimator of the target prior; see `tailshift list estimators`.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(metavar="TARGET", help=f"Target prior: {TARGETS}"),
]


def show_progress(starts: Sequence[int]) -> Iterable[int]:
    """Show how many batches of images are done, if the output is a terminal."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        return starts
    return track(starts, "images", console=terminal, transient=True)


@contextmanager
def show_phases() -> Iterator[Callable[[str], None]]:
    """Give a function that shows what is done at the moment, if somebody watches."""
    terminal = Console(stderr=True)
    status = terminal.status("")

    def show(phase: str) -> None:
        if terminal.is_terminal:
            status.update(phase)
            status.start()  # not before: images have a bar of their own

    try:
        yield show
    finally:
        status.stop()


def warn_of_broken(broken: Mapping[str, str]) -> None:
    """Print a warning for each image that cannot be read, by its path."""
    for path, reason in broken.items():
        text = printable(f"warning: `{path}` {reason} and is skipped.")
        print(text, file=sys.stderr)
