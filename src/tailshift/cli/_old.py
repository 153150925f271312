"""The command line: the library's verbs."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tailshift import config as recipes
from tailshift.data import DATASETS
from tailshift.demo import next_folder, report_run, run_demo, summarise_runs
from tailshift.methods import METHODS
from tailshift.models import MODELS
from tailshift.priors import PAPER_TARGETS
from tailshift.registry import Registry
from tailshift.report import summary_table, write_csv, write_report
from tailshift.training import Run, load, train

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
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
Runs = Annotated[list[Path], typer.Argument(help="Run directories.", metavar="RUN…")]


def main() -> None:
    """Run the command; a user's error is one sentence and exit code 2."""
    try:
        app()
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get("TAILSHIFT_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@app.command(epilog="Example: tailshift demo")
def demo(
    output: Annotated[
        Path | None, typer.Option(help="A new folder; by default runs/demo-N.")
    ] = None,
) -> None:
    """Train three methods on long-tailed digits and report on eleven targets."""
    folder = output or next_folder(Path("runs"))
    if folder.exists():
        raise FileExistsError(
            f"`output` {folder} exists. Name a new folder (--output)."
        )
    summaries, report = run_demo(folder, announce=console.print)
    console.print(summary_table(summaries))
    print(report)


@app.command("train", epilog="Example: tailshift train digits_lt --method lade")
def train_command(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A name of `tailshift list recipes`, or a TOML file."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Another method than the recipe's.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="One run for each: 0,1,2.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, e.g. method.alpha=0.05."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Run directory; by default runs/RECIPE/METHOD-seedN."),
    ] = None,
    data_root: DataRoot = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint.")
    ] = False,
    force: Force = False,
) -> None:
    """Train a recipe, one run for each seed."""
    for config, folder in _planned_runs(
        recipe, method, seeds, settings, output, resume
    ):
        run = train(
            config, output=folder, data_root=data_root, resume=resume, force=force
        )
        _report_training(run)


def _planned_runs(
    recipe: str | None,
    method: str | None,
    seeds: str | None,
    settings: list[str] | None,
    output: Path | None,
    resume: bool,
) -> list[tuple[recipes.RunConfig, Path | None]]:
    """Return the configuration and folder of each run that was asked for."""
    if recipe is None:
        if not resume or output is None:
            raise ValueError(
                "`RECIPE` is missing. `tailshift list recipes` shows all; to go on "
                "with a run, give --resume and --output."
            )
        return [(load(output).config, output)]
    overrides = [f"method.name={method}"] if method is not None else []
    overrides += settings or []
    if seeds is None:
        return [(recipes.load_recipe(recipe, overrides), output)]
    planned = []
    for seed in _parse_seeds(seeds):
        config = recipes.load_recipe(recipe, [*overrides, f"seed={seed}"])
        name = f"{config.method_name}-seed{seed}"
        planned.append((config, output / name if output is not None else None))
    return planned


def _parse_seeds(seeds: str) -> list[int]:
    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise ValueError(f"`--seeds` must be like 0,1,2, but is {seeds!r}.") from None


def _report_training(run: Run) -> None:
    if not run.is_finished:
        console.print(
            f"interrupted after {run.facts['epochs_done']} whole epochs; go on with "
            f"tailshift train --resume --output {run.directory}",
            soft_wrap=True,
        )
        raise SystemExit(130)
    [uniform] = summarise_runs([report_run(run)], ["uniform"])
    console.print(
        f"{run.config.method.title}: {100 * uniform.raw_mean:.1f} % raw, "
        f"{100 * uniform.compensated_mean:.1f} % compensated on the uniform test set",
        soft_wrap=True,
    )
    print(run.directory)


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
) -> None:
    """Print raw and compensated accuracy of finished runs on target distributions."""
    loaded = [report_run(load(run)) for run in runs]
    summaries = summarise_runs(loaded, target or PAPER_TARGETS)
    console.print(summary_table(summaries))
    if csv is not None:
        write_csv(csv, summaries)


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
    loaded = [report_run(load(run)) for run in runs]
    page = output / "report.html"
    write_report(page, loaded, title=title, overwrite=force)
    write_csv(output / "table.csv", summarise_runs(loaded))
    print(page)


class Listed(StrEnum):
    """What there are lists of."""

    METHODS = "methods"
    DATASETS = "datasets"
    MODELS = "models"
    RECIPES = "recipes"


@app.command("list", epilog="Example: tailshift list methods")
def list_command(kind: Annotated[Listed, typer.Argument(help="What to list.")]) -> None:
    """List methods, data sets, models or recipes."""
    rows = {
        Listed.METHODS: _method_rows,
        Listed.DATASETS: lambda: _sentences(DATASETS),
        Listed.MODELS: lambda: _sentences(MODELS),
        Listed.RECIPES: _recipe_rows,
    }[kind]()
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _sentences(registry: Registry[Any]) -> list[tuple[str, ...]]:
    return [(name, registry.get(name).sentence) for name in registry]


def _method_rows() -> list[tuple[str, ...]]:
    methods = ((name, METHODS.get(name)) for name in METHODS)
    return [(name, method.sentence, method.citation) for name, method in methods]


def _recipe_rows() -> list[tuple[str, ...]]:
    return [(name, recipes.recipe_sentence(name)) for name in recipes.recipe_names()]
