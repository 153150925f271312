"""The command, its handling of errors, and the options that commands share."""

import io
import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, cast

import typer
from rich.console import Console
from typer.core import TyperGroup

from tailshift.files import atomic_write
from tailshift.registry import load_plugin
from tailshift.text import printable
from tailshift.workers import exit_on_signals, ignore_signals

GROUPS = {
    "Start": ("demo", "data", "features", "train"),
    "Inspect": ("list", "show", "runs", "evaluate", "report", "figures"),
    "Shift": ("estimate", "certify", "retarget", "predict"),
    "Deploy": ("export", "serve"),
    "Research": ("tune", "reproduce"),
}
"""The commands in the order of the work, by their headings in the help."""
COMMANDS = tuple(name for group in GROUPS.values() for name in group)


class _InGroups(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [name for name in COMMANDS if name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            found = {name: self.get_command(ctx, name) for name in names}
            limit = formatter.width - 6 - width
            rows = [
                (name.ljust(width), command.get_short_help_str(limit))
                for name, command in found.items()
                if command is not None
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_InGroups,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train once on long-tailed data, serve any label distribution.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Example: tailshift demo",
)
console = Console()

TARGETS = (
    "source, uniform, forward:RATIO, backward:RATIO, permuted:RATIO, dirichlet:ALPHA, "
    "tweak:CLASS:SHARE, knock_out:CLASS,CLASS, SHARE,SHARE, CLASS=SHARE,CLASS=SHARE or "
    "a file of counts or shares."
)
"""The targets as help texts name them; a test compares them with what is parsed."""

DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", envvar="TAILSHIFT_DATA", help="Folder of the data."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, e.g. method.alpha=0.05; may be repeated.",
    ),
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
        help="Run a Python file that registers methods or data sets.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(help="Number of runs at the same time; 0: one per GPU or core."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[
    Path | None, typer.Option(help="Also write the table to this CSV file.")
]
Markdown = Annotated[
    Path | None, typer.Option(help="Also write the table as Markdown to this file.")
]
Latex = Annotated[
    Path | None,
    typer.Option(help="Also write the table as LaTeX (booktabs) to this file."),
]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"tailshift {version('tailshift')}")
        raise typer.Exit


@app.callback()
def _app(
    plugin: Plugins = None,
    is_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Train once on long-tailed data, serve any label distribution."""


def main() -> None:
    """Run the command; a user's error is one sentence and exit code 2.

    Exit code 130 follows Ctrl-C; 75 follows SIGTERM, and says how to resume if training
    had begun. What should never happen is one sentence too, and exit code 1.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know an α
    try:
        with warnings.catch_warnings(), exit_on_signals(), _named_output():
            warnings.showwarning = _show_warning
            app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except SystemExit as end:
        _print_resume_command(end)
        raise
    except Exception as error:
        if os.environ.get("TAILSHIFT_TRACEBACK"):
            raise
        raise SystemExit(_print_error(error)) from None


def program() -> None:
    """Run the command as a process of its own; ignore signals once it is done."""
    try:
        main()
    finally:
        ignore_signals()


class _Output:
    """Standard output, which names itself if it cannot be written to.

    Args:
        stream: The stream that it stands for.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._naming():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._naming():
            self._stream.flush()

    def discard(self) -> None:
        """Let go of what is not written; Python would try again, and complain."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.discard()
            raise OSError(
                f"standard output cannot be written ({error.strerror})."
            ) from None


@contextmanager
def _named_output() -> Iterator[None]:
    """Let standard output name itself, also in a fault that shows only at the end."""
    if sys.stdout is None:  # it was closed; nothing is printed
        yield
        return
    output = _Output(sys.stdout)
    with redirect_stdout(cast(TextIO, output)):
        try:
            yield
        except SystemExit as end:
            if not end.code:
                _write_rest(output)
            raise


def _write_rest(output: _Output) -> None:
    try:
        output.flush()
    except BrokenPipeError:  # who reads it has seen enough
        output.discard()
        raise SystemExit(1) from None


def _print_resume_command(end: SystemExit) -> None:
    """Name the command that resumes what SIGTERM has ended (`Preempted`)."""
    directory = getattr(end, "directory", None)
    if directory is None:
        return
    from tailshift.runs.files import resume_command
    from tailshift.training.distributed import is_first_process

    if is_first_process():
        command = printable(resume_command(directory))
        print(f"pre-empted and saved; resume with {command}", file=sys.stderr)


def _print_error(error: Exception) -> int:
    """Print an error, a sentence a fault; return the exit code."""
    if isinstance(error, ValueError | OSError | FloatingPointError | ImportError):
        for line in str(error).splitlines():  # a faulty recipe has a line for each
            print(f"error: {printable(line)}", file=sys.stderr)
        return 2
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = printable(" ".join(str(error).split()))
    print(
        f"error: {type(error).__name__}: {text} "
        f"({Path(place.filename).name}:{place.lineno}). This is a fault of tailshift: "
        "please report it, with what TAILSHIFT_TRACEBACK=1 shows.",
        file=sys.stderr,
    )
    return 1


@contextmanager
def report_interrupts() -> Iterator[None]:
    """Print what an interruption has to say; Typer knows only its exit code."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print(printable(str(interrupt)), file=sys.stderr)
        raise SystemExit(130) from None


def _show_warning(message: Warning | str, *args: object, **settings: object) -> None:
    """Print a warning as a sentence, without the line of code it came from."""
    print(f"warning: {printable(str(message))}", file=sys.stderr)


def announce(text: str) -> None:
    """Print a line as it is, whatever brackets or control characters it holds."""
    console.print(printable(text), markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print what a user should know, beside the results."""
    print(f"note: {printable(text)}", file=sys.stderr)


def print_json(content: Any) -> None:
    """Print content as JSON, in which NaN is null."""
    print(json.dumps(_without_nan(content), indent=2, ensure_ascii=False))


def _without_nan(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    is_nan = isinstance(content, float) and not math.isfinite(content)
    return None if is_nan else content


def write_text(path: Path, text: str) -> None:
    """Write a table's text, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


RunsOrLogits = Annotated[
    list[str] | None,
    typer.Argument(
        help="Run directories, or [NAME=]FILE of logits and labels.", metavar="RUN…"
    ),
]
LogitsFiles = Annotated[list[str] | None, typer.Option(hidden=True)]
LogitPriorOption = Annotated[
    Literal["source", "uniform"] | None,
    typer.Option(
        "--logit-prior",
        "--trained-prior",
        help="Prior of the logits, if their file does not say.",
    ),
]
