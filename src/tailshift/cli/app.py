"""The command, its handling of errors, and the options that commands share."""

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tailshift.report import ReportRun
from tailshift.report.runs import (
    CarriedPrior,
    distinct_titles,
    is_logits_file,
    report_run,
    run_from_logits,
)
from tailshift.runs.run import Run, load, resume_command
from tailshift.storage import atomic_write
from tailshift.training.distributed import is_first_process
from tailshift.training.interrupt import Preempted

app = typer.Typer(
    help="Train once on long-tailed data, serve any label distribution.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Example: tailshift demo",
)
console = Console()

DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", envvar="TAILSHIFT_DATA", help="Where data is or goes."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE, e.g. method.alpha=0.05."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
Csv = Annotated[Path | None, typer.Option(help="Write the table here too.")]
Markdown = Annotated[Path | None, typer.Option(help="Here too, as Markdown.")]
Latex = Annotated[Path | None, typer.Option(help="Here too, as LaTeX (booktabs).")]
Runs = Annotated[list[Path], typer.Argument(help="Run directories.", metavar="RUN…")]


def main() -> None:
    """Run the command; a user's error is one sentence and exit code 2.

    Exit code 130 follows Ctrl-C; 75 follows SIGTERM in training, and says that the same
    command with --resume goes on.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know an α
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        if os.environ.get("TAILSHIFT_TRACEBACK"):
            raise
        for line in str(error).splitlines():  # a faulty recipe has a line for each
            print(f"error: {line}", file=sys.stderr)
        raise SystemExit(2) from None
    except Preempted as preempted:
        if preempted.directory is not None and is_first_process():
            command = resume_command(preempted.directory)
            print(f"pre-empted and saved; go on with {command}", file=sys.stderr)
        raise
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextmanager
def telling_interrupts() -> Iterator[None]:
    """Print what an interruption has to say; Typer knows only its exit code."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print(interrupt, file=sys.stderr)
        raise SystemExit(130) from None


def _show_warning(message: Warning | str, *args: object, **settings: object) -> None:
    """Print a warning as a sentence, without the line of code it came from."""
    print(f"warning: {message}", file=sys.stderr)


def announce(text: str) -> None:
    """Print a line as it is, whatever brackets it holds."""
    console.print(text, markup=False, soft_wrap=True)


def write_text(path: Path, text: str) -> None:
    """Write a table's text, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


RunsOrLogits = Annotated[
    list[str] | None,
    typer.Argument(help="Run directories, or files as for --logits.", metavar="RUN…"),
]
Logits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FILE",
        help="Logits and labels made elsewhere: .npz or safetensors.",
    ),
]
TrainedPrior = Annotated[
    CarriedPrior | None,
    typer.Option(help="The prior that logits carry, where their file has none."),
]


def load_all(
    runs: Sequence[str] | None,
    logits: Sequence[str] | None,
    trained_prior: CarriedPrior | None,
) -> list[ReportRun]:
    """Return what was named: run directories first, then files of logits."""
    names = runs or []
    files = [name for name in names if is_logits_file(name)]
    loaded = load_runs([Path(name) for name in names if name not in files])
    loaded += [_load_logits(name, trained_prior) for name in [*(logits or []), *files]]
    if not loaded:
        raise ValueError("Name a run directory, or a file of logits with --logits.")
    return loaded


def load_runs(directories: Sequence[Path]) -> list[ReportRun]:
    """Return runs to show; settings in which runs of a method differ are named."""
    loaded = [_load(directory) for directory in directories]
    titles = distinct_titles([run.config.method for run in loaded])
    return [
        replace(report_run(run), method=title)
        for run, title in zip(loaded, titles, strict=True)
    ]


def _load(directory: Path) -> Run:
    """Return a run; one that is not finished is pointed out."""
    run = load(directory)
    if not run.is_finished:
        print(
            f"note: {directory} is not finished; {run.facts['epochs_done']} of "
            f"{run.config.own_epochs} epochs are done.",
            file=sys.stderr,
        )
    return run


def _load_logits(file: str, trained_prior: CarriedPrior | None) -> ReportRun:
    """Return a file's run; one whose logits carry an unknown prior is pointed out."""
    run = run_from_logits(file, trained_prior=trained_prior)
    if run.predictions.trained_prior is None:
        print(
            f"note: {run.name} does not say which prior its logits carry, so only raw "
            "results are shown. Name it with --trained-prior.",
            file=sys.stderr,
        )
    return run


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that exists, unless it is to be replaced, and what is no file."""
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(f"{path.parent} is a file, but must be a folder.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, but must be a file.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists. Replace it (--force) or name another.")
