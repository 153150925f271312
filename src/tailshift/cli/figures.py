"""The command that draws, and how `tailshift reproduce` draws the paper's figures."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tailshift.cli.app import Force, announce, app, console, telling_interrupts
from tailshift.cli.loading import (
    Logits,
    RunsOrLogits,
    TrainedPrior,
    check_new,
    load_all,
)
from tailshift.evaluation.shifts import HELP
from tailshift.report.estimates import estimate_table
from tailshift.reproduce_figures import reproduce_figure


@app.command(epilog="Example: tailshift figures runs/digits_lt/lade-seed0 -o figures")
def figures(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")],
    runs: RunsOrLogits = None,
    logits: Logits = None,
    trained_prior: TrainedPrior = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="class_counts, average_probability, class_logits, reliability, "
            "target_shift, accuracy_change. As often as you like; all if not at all.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help=f"What reliability and accuracy_change are shown on. {HELP}",
        ),
    ] = "uniform",
    force: Force = False,
) -> None:
    """Write figures of finished runs, or of logits, as SVG and PNG into a folder."""
    from tailshift.report.plots import (
        FIGURES,
        write_figures,
    )  # Matplotlib takes a while

    loaded = load_all(runs, logits, trained_prior)
    paths = write_figures(
        loaded,
        output,
        figures=figure or tuple(FIGURES),
        target=target,
        overwrite=force,
        announce=_note,
    )
    for path in paths:
        print(path)


def draw_paper_figure(
    figure: str,
    *,
    runs: Path,
    seeds: Sequence[int],
    quick: bool,
    settings: Sequence[str],
    logits: Path | None,
    data_root: Path | None,
    dry_run: bool,
    output: Path,
    force: bool,
) -> None:
    """Train what a figure of the paper lacks, and draw it; with faults, exit code 2."""
    paths = [output / f"{figure}.{kind}" for kind in ("svg", "png")]
    for path in [] if dry_run else paths:
        check_new(path, force)
    with telling_interrupts():
        plan, faults = reproduce_figure(
            figure,
            runs=runs,
            seeds=seeds,
            quick=quick,
            settings=settings,
            logits=logits,
            data_root=data_root,
            dry_run=dry_run,
            announce=announce,
        )
    if dry_run and plan.missing:
        console.print(estimate_table(plan.estimates(data_root)))
    announce(plan.title)
    for title in plan.lacking:
        _note(f"there is no run of {title}.")
    if plan.runs and not dry_run:
        from tailshift.report.plots import FIGURES, save_figure

        drawn = FIGURES[plan.figure.name](plan.runs, "uniform")
        save_figure(drawn, paths, overwrite=force)
        for path in paths:
            print(path)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    if faults:
        raise SystemExit(2)


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
