"""Commands that score finished runs: evaluate, report, figures."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import typer

from tailshift.cli.app import (
    TARGETS,
    Csv,
    Force,
    Json,
    Latex,
    LogitPriorOption,
    LogitsFiles,
    Markdown,
    Plugins,
    RunsOrLogits,
    app,
    console,
    print_json,
    print_note,
    write_text,
)
from tailshift.files import check_new
from tailshift.text import printable


@app.command(
    "evaluate",
    epilog="Example: tailshift evaluate runs/digits_lt/lade-seed0 --target backward:10",
)
def evaluate_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…", help="Run directories, or [NAME=]FILE of logits and labels."
        ),
    ],
    logit_prior: LogitPriorOption = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help=f"{TARGETS} May be repeated; default: the paper's eleven (uniform "
            "alone if a file has no training counts).",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC",
            help="Metric to show: a name of `tailshift list metrics`. May be repeated.",
        ),
    ] = None,
    sampling: Annotated[
        Literal["expected", "first", "random", "reweighted"] | None,
        typer.Option(
            help="Score a target's test set: the expectation over all test sets with "
            "the paper's counts, the first samples of each class, random test sets "
            "(mean ± sd), or all samples, re-weighted. Default: expected if the "
            "classes are balanced, else reweighted."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Number of random test sets.")] = 10,
    prior: Annotated[
        Literal["declared", "measured"],
        typer.Option(
            help="The prior to compensate runs from: the one that the method declares, "
            "or the one measured on validation images."
        ),
    ] = "declared",
    csv: Csv = None,
    markdown: Markdown = None,
    latex: Latex = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Add a row for each run and target to this CSV file."),
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option(
            help="Also save each run's test logits, in half precision, to this folder."
        ),
    ] = None,
    json: Json = False,
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Print scores of runs or logits for target priors.

    Scores are as trained and re-targeted; n is the number of test samples. The CSV
    file and --json have accuracy and the four calibration metrics.
    """
    from tailshift.evaluation.results import add_results, keep_logits, result_rows
    from tailshift.metrics.table import CALIBRATION, check_metric
    from tailshift.report import runs as report_runs
    from tailshift.report import summary_table, write_csv
    from tailshift.report.tables import to_latex, to_markdown
    from tailshift.runs.run import load_run

    shown = [check_metric(name) for name in metric or ["accuracy"]]
    for path in (csv, markdown, latex):
        if path is not None:
            check_new(path, force)
    files = [run for run in runs if report_runs.is_logits_file(run)]
    if files and (results or logits):
        raise ValueError(
            f"`--results` and `--logits` keep what runs have, but {files[0]} is a file "
            "of logits. Name run directories."
        )
    if prior == "measured" and (results or logits):
        raise ValueError(
            "`--results` and `--logits` keep what methods declare, but `--prior` is "
            "'measured'. Leave one of them out."
        )
    loaded = [load_run(Path(run)) for run in runs if run not in files]
    found = report_runs.gather_runs(
        [*loaded, *files],
        logit_prior=logit_prior,
        prior=prior,
        announce=print_note,
    )
    report_runs.check_runs(found)
    targets = target or report_runs.report_targets(found)
    summaries = report_runs.summarise_runs(
        found,
        targets,
        metrics=tuple(dict.fromkeys(["accuracy", *CALIBRATION, *shown])),
        sampling=sampling,
        repeats=repeats,
    )
    tables = [[s for s in summaries if s.metric == name] for name in shown]
    if json:
        print_json([dataclasses.asdict(summary) for summary in summaries])
    else:
        for table in tables:
            console.print(summary_table(table))
        for sentence in filter(None, map(report_runs.carried_sentence, found)):
            print(printable(sentence))
    if csv is not None:
        write_csv(csv, summaries)
    if markdown is not None:
        write_text(markdown, "\n".join(map(to_markdown, tables)))
    if latex is not None:
        write_text(latex, "\n".join(map(to_latex, tables)))
    if results is not None:
        for run, shown_as in zip(loaded, found, strict=True):
            rows = result_rows(run, targets, records=shown_as.records(targets))
            add_results(results, rows)
    if logits is not None:
        for run in loaded:
            print(keep_logits(run, logits))


@app.command(
    "report", epilog="Example: tailshift report runs/digits_lt/lade-seed0 -o report"
)
def report_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")],
    runs: RunsOrLogits = None,
    logits: LogitsFiles = None,
    logit_prior: LogitPriorOption = None,
    title: Annotated[
        str, typer.Option(help="The page's heading.")
    ] = "tailshift report",
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Write an HTML report of runs or logits.

    The folder gets report.html and table.csv.
    """
    from tailshift.report import report

    page = report(
        _named(runs, logits),
        output,
        title=title,
        logit_prior=logit_prior,
        force=force,
        announce=print_note,
    )
    print(page)


def _named(runs: list[str] | None, logits: list[str] | None) -> list[str]:
    """Return all that was named; files of logits may still come with ``--logits``."""
    if logits:
        print_note("`--logits` is deprecated: name the files as arguments.")
    named = [*(runs or ()), *(logits or ())]
    if not named:
        raise ValueError("Name a run directory, or a file of logits.")
    return named


@app.command(epilog="Example: tailshift figures runs/digits_lt/lade-seed0 -o figures")
def figures(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")],
    runs: RunsOrLogits = None,
    logits: LogitsFiles = None,
    logit_prior: LogitPriorOption = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="class_counts, average_probability, class_logits, reliability, "
            "target_shift, accuracy_change. May be repeated; default: all.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help=f"What reliability and accuracy_change are shown on. {TARGETS}",
        ),
    ] = "uniform",
    plugin: Plugins = None,
    force: Force = False,
) -> None:
    """Write figures of runs or logits as SVG and PNG."""
    from tailshift.report.plots import (  # Matplotlib takes a while
        write_figures,
    )
    from tailshift.report.runs import gather_runs

    found = gather_runs(
        _named(runs, logits), logit_prior=logit_prior, announce=print_note
    )
    paths = write_figures(
        found,
        output,
        figures=figure,
        target=target,
        overwrite=force,
        announce=print_note,
    )
    for path in paths:
        print(path)
