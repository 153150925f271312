"""What showing commands are given: run directories, files of logits, a new place."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tailshift.demo import report_run
from tailshift.report import ReportRun
from tailshift.report.logits import CarriedPrior, is_logits_file, run_from_logits
from tailshift.report.titles import distinct_titles
from tailshift.training import Run, load

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
