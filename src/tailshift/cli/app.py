"""The command, its handling of errors, and the options that commands share."""

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tailshift.registry import load_plugin
from tailshift.report.runs import CarriedPrior
from tailshift.runs.run import resume_command
from tailshift.storage import atomic_write, printable
from tailshift.storage import check_new as check_new
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


def _load_plugins(paths: list[Path] | None) -> list[Path] | None:
    """Load plugins before the other options are read, which may name what is theirs."""
    for path in paths or ():
        load_plugin(path)
    return paths


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        callback=_load_plugins,
        is_eager=True,
        help="Run this Python file first; it registers methods, data sets and so on.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
Csv = Annotated[Path | None, typer.Option(help="Write the table here too.")]
Markdown = Annotated[Path | None, typer.Option(help="Here too, as Markdown.")]
Latex = Annotated[Path | None, typer.Option(help="Here too, as LaTeX (booktabs).")]
RunFolders = Annotated[
    list[Path], typer.Argument(help="Run directories.", metavar="RUN…")
]


@app.callback()
def _app(plugin: Plugins = None) -> None:
    """Train once on long-tailed data, serve any label distribution."""


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
            print(f"error: {printable(line)}", file=sys.stderr)
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
    print(f"warning: {printable(str(message))}", file=sys.stderr)


def announce(text: str) -> None:
    """Print a line as it is, whatever brackets or control characters it holds."""
    console.print(printable(text), markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print what a user should know, beside the results."""
    print(f"note: {text}", file=sys.stderr)


def write_text(path: Path, text: str) -> None:
    """Write a table's text, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


RunsOrLogits = Annotated[
    list[str] | None,
    typer.Argument(help="Run directories, or files as for --logits.", metavar="RUN…"),
]
LogitsFiles = Annotated[
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
