"""Commands of the paper's experiments: reproduce, tune."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailshift.cli.app import (
    Csv,
    DataRoot,
    Force,
    Jobs,
    Latex,
    Markdown,
    Plugins,
    Settings,
    announce,
    app,
    console,
    print_note,
    report_interrupts,
    write_text,
)
from tailshift.cli.train import parse_seeds
from tailshift.text import printable

if TYPE_CHECKING:
    from tailshift.paper.reproduce import Plan


@contextmanager
def _report_interruption() -> Iterator[None]:
    """Say that the same command resumes what Ctrl-C or SIGTERM has ended.

    The run that was under way is one of several, some on part of the images: it is not
    to be resumed by itself.
    """
    from tailshift.training.distributed import is_first_process
    from tailshift.workers import Preempted

    try:
        with report_interrupts():
            yield
    except Preempted as end:
        if end.directory is not None and is_first_process():
            print("pre-empted and saved: the same command resumes.", file=sys.stderr)
        raise Preempted from None


@app.command(
    "reproduce", epilog="Example: tailshift reproduce table2 --quick --dry-run"
)
def reproduce_command(
    what: Annotated[
        str,
        typer.Argument(help="table1 … table11, figure2, figure3, figure4, figure6."),
    ],
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    seeds: Annotated[str, typer.Option(help="Seeds, one run each: 0,1,2.")] = "0",
    quick: Annotated[
        bool, typer.Option("--quick", help="Use the quick recipes.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the table; train nothing."),
    ] = False,
    time: Annotated[
        bool,
        typer.Option("--time", help="With --dry-run, estimate the training time."),
    ] = False,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands", help="Print a command for each missing run; train nothing."
        ),
    ] = False,
    settings: Settings = None,
    logits: Annotated[
        Path | None,
        typer.Option(help="Folder of saved logits, used for runs that are missing."),
    ] = None,
    data_root: DataRoot = None,
    csv: Csv = None,
    markdown: Markdown = None,
    latex: Latex = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder to write a figure's files to."),
    ] = Path("figures"),
    plugin: Plugins = None,
    force: Force = False,
    jobs: Jobs = 1,
) -> None:
    """Train and compare a table or figure of the paper.

    Missing runs are trained. A table is printed next to the paper's numbers; a figure
    is written as SVG and PNG.
    """
    from tailshift.paper.numbers import PAPER_FIGURES
    from tailshift.paper.reproduce import figure_files, reproduce

    is_figure = what in PAPER_FIGURES
    if time and not dry_run:
        raise ValueError("`--time` needs `--dry-run`. Add `--dry-run`.")
    if is_figure and (csv or markdown or latex):
        raise ValueError("`--csv`, `--markdown` and `--latex` are for tables.")
    if is_figure and not (dry_run or commands):
        figure_files(what, output, force=force)  # refuse before training, not after
    with _report_interruption():
        plan = reproduce(
            what,
            runs=runs,
            seeds=parse_seeds(seeds),
            quick=quick,
            settings=settings or (),
            logits=logits,
            data_root=data_root,
            dry_run=dry_run or commands,
            jobs=jobs,
            announce=announce,
        )
    if commands:
        print(*plan.commands, sep="\n", end="\n" if plan.missing else "")
        return
    if is_figure:
        announce(plan.title)
        for title in plan.lacking:
            print_note(f"there is no run of {title}.")
        for path in [] if dry_run else plan.draw(output, force=force):
            print(path)
    else:
        _show_table(plan, csv, markdown, latex)
    if dry_run and plan.missing:
        _show_missing(plan, time=time)
    for fault in plan.faults:
        print(f"error: {printable(fault)}", file=sys.stderr)
    if plan.faults:
        raise SystemExit(2)


def _show_missing(plan: "Plan", *, time: bool) -> None:
    """Print how many runs are missing, and how long they would take if asked."""
    from tailshift.paper.duration import estimate_table

    for sentence in plan.missing_data:
        print_note(sentence)
    if time:
        console.print(estimate_table(plan.estimates(announce=_say)))
        return
    number = len(plan.missing)
    print_note(
        f"{number} {'run is' if number == 1 else 'runs are'} missing. `--commands` "
        "prints how to train them, `--dry-run --time` estimates the time."
    )


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _show_table(
    plan: "Plan", csv: Path | None, markdown: Path | None, latex: Path | None
) -> None:
    """Print ours beside the paper's, and write it in the forms that were asked for."""
    from tailshift.paper import tables

    cells, title, corner = plan.comparisons(), plan.title, plan.request.table.corner
    console.print(tables.comparison_table(cells, title=title, corner=corner))
    if csv is not None:
        tables.write_comparison_csv(csv, cells)
    if markdown is not None:
        write_text(markdown, tables.comparison_markdown(cells, corner=corner))
    if latex is not None:
        write_text(latex, tables.comparison_latex(cells, title=title, corner=corner))


@app.command(
    "tune", epilog="Example: tailshift tune digits_lt --set method.name=lade -o search"
)
def tune_command(
    recipe: Annotated[str, typer.Argument(help="A recipe that trains LADE.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")],
    alphas: Annotated[str, typer.Option(help="Values of α, like 0.01,0.1.")] = "",
    lams: Annotated[str, typer.Option(help="Values of λ, like 0.01,0.1.")] = "",
    settings: Settings = None,
    data_root: DataRoot = None,
    plugin: Plugins = None,
    jobs: Jobs = 1,
) -> None:
    """Search α and λ of LADE on validation data.

    Run the same command again to resume.
    """
    from tailshift.paper import tune, tune_results
    from tailshift.recipes import load_recipe

    config = load_recipe(recipe, settings or ())
    with _report_interruption():
        found = tune.tune(
            config,
            output=output,
            data_root=data_root,
            alphas=_parse_values("--alphas", alphas) or tune.GRID,
            lams=_parse_values("--lams", lams) or tune.GRID,
            jobs=jobs,
            announce=announce,
        )
    console.print(tune_results.tuning_table(found.trials))
    tune_results.write_tuning_csv(output / "tuning.csv", found.trials)
    tune_results.save_heat_map(output / "tuning.svg", found.trials, title=config.recipe)
    print(found.run.directory)


def _parse_values(name: str, text: str) -> list[float]:
    try:
        return [float(value) for value in text.split(",") if value]
    except ValueError:
        raise ValueError(f"`{name}` must be like 0.01,0.1, but is {text!r}.") from None
