"""Commands that describe recipes and runs: show, runs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.cli.app import (
    Json,
    Plugins,
    Settings,
    app,
    console,
    print_json,
    print_note,
)
from tailshift.text import printable

if TYPE_CHECKING:
    from tailshift.config import RunConfig
    from tailshift.report.overview import RunOverview


@app.command("show", epilog="Example: tailshift show digits_lt --set method.name=lade")
def show_command(
    name: Annotated[
        str, typer.Argument(metavar="RECIPE|RUN", help="A recipe or a run directory.")
    ],
    settings: Settings = None,
    json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Show all settings of a recipe or a run."""
    from tailshift.report.settings import resolved_settings

    found = resolved_settings(_config(name, settings or []))
    if json:
        print_json([setting._asdict() for setting in found])
        return
    if not console.is_terminal:
        for setting in found:
            print(printable(f"{setting.name}\t{setting.value}\t{setting.description}"))
        return
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    for setting in found:
        about = Text(f"\n{printable(setting.description)}", style="dim")
        value = Text(printable(str(setting.value)))
        table.add_row(setting.name, value + about if setting.description else value)
    console.print(table)


def _config(name: str, settings: list[str]) -> "RunConfig":
    from tailshift.recipes import load_recipe
    from tailshift.runs.files import read_config

    if not Path(name).is_dir():
        return load_recipe(name, settings)
    if settings:
        raise ValueError(
            f"`--set` changes a recipe, but {name} is a run. Leave `--set` out."
        )
    return read_config(Path(name))


@app.command("runs", epilog="Example: tailshift runs runs/digits_lt")
def runs_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the runs.")] = Path("runs"),
    json: Json = False,
    plugin: Plugins = None,
) -> None:
    """List runs with state, method and accuracy.

    Accuracy is on the test set, as trained. Balanced accuracy is the mean of the
    classes' accuracies.
    """
    from tailshift.report.overview import list_runs

    found = list_runs(folder, print_note)
    if json:
        print_json([dataclasses.asdict(run) for run in found])
        return
    if not found:
        print_note(f"there are no runs in {folder}. `tailshift train` makes one.")
        return
    console.print(_runs_table(found))


def _runs_table(found: list["RunOverview"]) -> Table:
    from tailshift.metrics.table import METRICS

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("run", "state", "method", "epochs", "accuracy", "balanced"):
        is_text = heading in ("run", "state", "method")
        table.add_column(heading, justify="left" if is_text else "right")
    percent = METRICS.get("accuracy").text
    for run in found:
        scores = map(percent, (run.accuracy, run.balanced_accuracy))
        texts = (run.directory, run.state, run.method, str(run.epochs), *scores)
        table.add_row(*(Text(printable(text)) for text in texts))
    return table
