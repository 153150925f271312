"""Commands that show what finished runs are worth: evaluate, report."""

from pathlib import Path
from typing import Annotated

import typer

from tailshift.cli.app import (
    Csv,
    Force,
    Latex,
    Markdown,
    Runs,
    app,
    console,
    write_text,
)
from tailshift.cli.loading import (
    Logits,
    RunsOrLogits,
    TrainedPrior,
    check_new,
    load_all,
    load_runs,
)
from tailshift.demo import summarise_runs
from tailshift.evaluation import Sampling
from tailshift.evaluation.measures import CALIBRATION, MEASURES, check_measure
from tailshift.evaluation.results import add_results, keep_logits, result_rows
from tailshift.evaluation.shifts import HELP
from tailshift.priors import PAPER_TARGETS
from tailshift.report import summary_table, write_csv, write_report
from tailshift.report.page import check_runs, report_targets
from tailshift.report.tables import to_latex, to_markdown
from tailshift.training import load


@app.command(
    epilog="Example: tailshift evaluate runs/digits_lt/lade-seed0 --target backward:10"
)
def evaluate(
    runs: Runs,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help=f"{HELP} As often as you like; the paper's eleven if not at all.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help=f"What is shown: {', '.join(MEASURES)}. As often as you like.",
        ),
    ] = None,
    sampling: Annotated[
        Sampling,
        typer.Option(
            help="The test set of a target: the first samples of each class (as in the "
            "paper), random ones (mean ± sd), or all of them, re-weighted."
        ),
    ] = "first",
    repeats: Annotated[int, typer.Option(help="How many random test sets.")] = 10,
    csv: Csv = None,
    markdown: Markdown = None,
    latex: Latex = None,
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
    """Print raw and compensated scores of finished runs on target distributions.

    The CSV file has accuracy and the four calibration metrics, whatever is shown.
    """
    shown = [check_measure(name) for name in metric or ["accuracy"]]
    for path in (csv, markdown, latex):
        if path is not None:
            check_new(path, force)
    loaded = load_runs(runs)
    check_runs(loaded)
    summaries = summarise_runs(
        loaded,
        target or PAPER_TARGETS,
        metrics=tuple(dict.fromkeys(["accuracy", *CALIBRATION, *shown])),
        sampling=sampling,
        repeats=repeats,
    )
    tables = [[s for s in summaries if s.metric == name] for name in shown]
    for table in tables:
        console.print(summary_table(table))
    if csv is not None:
        write_csv(csv, summaries)
    if markdown is not None:
        write_text(markdown, "\n".join(map(to_markdown, tables)))
    if latex is not None:
        write_text(latex, "\n".join(map(to_latex, tables)))
    if results is not None:
        for run in runs:
            add_results(results, result_rows(load(run), target or PAPER_TARGETS))
    if logits is not None:
        for run in runs:
            print(keep_logits(load(run), logits))


@app.command(epilog="Example: tailshift report runs/digits_lt/lade-seed0 -o report")
def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")],
    runs: RunsOrLogits = None,
    logits: Logits = None,
    trained_prior: TrainedPrior = None,
    title: Annotated[
        str, typer.Option(help="The page's heading.")
    ] = "tailshift report",
    force: Force = False,
) -> None:
    """Write report.html and table.csv of finished runs, or of logits, into a folder."""
    page, table = output / "report.html", output / "table.csv"
    for path in (page, table):
        check_new(path, force)
    loaded = load_all(runs, logits, trained_prior)
    write_report(page, loaded, title=title, overwrite=force)
    write_csv(table, summarise_runs(loaded, report_targets(loaded)))
    print(page)
