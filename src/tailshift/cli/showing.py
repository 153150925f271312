"""Commands that show what finished runs are worth: evaluate, report."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tailshift.cli.app import Force, Runs, app, console
from tailshift.demo import report_run, summarise_runs
from tailshift.evaluation.results import add_results, keep_logits, result_rows
from tailshift.priors import PAPER_TARGETS
from tailshift.report import ReportRun, summary_table, write_csv, write_report
from tailshift.report.page import check_runs
from tailshift.training import load


@app.command(
    epilog="Example: tailshift evaluate runs/digits_lt/lade-seed0 --target backward:10"
)
def evaluate(
    runs: Runs,
    target: Annotated[
        list[str] | None,
        typer.Option(help="uniform, forward:50, backward:10 or a file of counts."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table here too.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Add a row for each run and target to this CSV file."),
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option(help="Keep each run's test logits here, in half precision."),
    ] = None,
    force: Force = False,
) -> None:
    """Print raw and compensated accuracy of finished runs on target distributions."""
    if csv is not None:
        _check_new(csv, force)
    loaded = [_load(run) for run in runs]
    check_runs(loaded)
    summaries = summarise_runs(loaded, target or PAPER_TARGETS)
    console.print(summary_table(summaries))
    if csv is not None:
        write_csv(csv, summaries)
    if results is not None:
        for run in runs:
            add_results(results, result_rows(load(run), target or PAPER_TARGETS))
    if logits is not None:
        for run in runs:
            print(keep_logits(load(run), logits))


@app.command(epilog="Example: tailshift report runs/digits_lt/lade-seed0 -o report")
def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")],
    title: Annotated[
        str, typer.Option(help="The page's heading.")
    ] = "tailshift report",
    force: Force = False,
) -> None:
    """Write report.html and table.csv of finished runs into a folder."""
    page, table = output / "report.html", output / "table.csv"
    for path in (page, table):
        _check_new(path, force)
    loaded = [_load(run) for run in runs]
    write_report(page, loaded, title=title, overwrite=force)
    write_csv(table, summarise_runs(loaded))
    print(page)


def _load(directory: Path) -> ReportRun:
    """Return a run to report on; one that is not finished is pointed out."""
    run = load(directory)
    if not run.is_finished:
        print(
            f"note: {directory} is not finished; {run.facts['epochs_done']} of "
            f"{run.config.train.epochs} epochs are done.",
            file=sys.stderr,
        )
    return report_run(run)


def _check_new(path: Path, force: bool) -> None:
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(f"{path.parent} is a file, but must be a folder.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, but must be a file.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists. Replace it (--force) or name another.")
