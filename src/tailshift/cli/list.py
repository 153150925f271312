"""Commands that list entries and check data: list, data check."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.cli.app import DataRoot, Json, Plugins, app, console, print_json
from tailshift.registry import OWN, Registry
from tailshift.text import printable

if TYPE_CHECKING:
    from tailshift.config import RunConfig
    from tailshift.methods import Method


class Listed(StrEnum):
    """Kinds of entries."""

    METHODS = "methods"
    LOSSES = "losses"
    HEADS = "heads"
    MODELS = "models"
    DATASETS = "datasets"
    SAMPLERS = "samplers"
    SCHEDULES = "schedules"
    ESTIMATORS = "estimators"
    METRICS = "metrics"
    FIGURES = "figures"
    RECIPES = "recipes"


REGISTRIES = {
    Listed.METHODS: "tailshift.methods",
    Listed.LOSSES: "tailshift.losses",
    Listed.HEADS: "tailshift.models",
    Listed.MODELS: "tailshift.models",
    Listed.DATASETS: "tailshift.data",
    Listed.SAMPLERS: "tailshift.data",
    Listed.SCHEDULES: "tailshift.methods",
    Listed.ESTIMATORS: "tailshift.estimators",
    Listed.METRICS: "tailshift.metrics",
    Listed.FIGURES: "tailshift.report.plots",
}
"""The package of each registry; the registry has the name of its kind."""


@app.command("list", epilog="Example: tailshift list methods")
def list_command(
    kind: Annotated[Listed, typer.Argument(help="What to list.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD...]", help="Show only entries with these words."),
    ] = None,
    json: Json = False,
    plugin: Plugins = None,
) -> None:
    """List recipes, methods, models and other entries."""
    rows = _recipe_rows() if kind == Listed.RECIPES else _entry_rows(kind)
    rows = [row for row in rows if _has_words(row, words or ())]
    if json:
        print_json([_as_object(row) for row in rows])
        return
    if not console.is_terminal:
        print("\n".join("\t".join(row) for row in rows))
        return
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    for name, sentence, *more in rows:  # narrow terminals have room for two columns
        table.add_row(_above(name, more[:1], "  "), _above(sentence, more[1:], ""))
    console.print(table)


def _has_words(row: Sequence[str], words: Sequence[str]) -> bool:
    text = " ".join(row).lower()
    return all(word.lower() in text for word in words)


def _as_object(row: Sequence[str]) -> dict[str, object]:
    name, sentence, *more = row
    return {"name": name, "sentence": sentence, "more": more}


def _above(first: str, more: Sequence[str], indent: str) -> Text:
    below = [Text(f"{indent}{part}", style="dim") for part in more]
    return Text("\n").join([Text(first), *below])


def _entry_rows(kind: Listed) -> list[tuple[str, ...]]:
    """Return name, sentence, what else is known, and the plugin if it is one's."""
    room = import_module(REGISTRIES[kind])
    registry: Registry[Any] = getattr(room, kind.name)
    rows = []
    for name in registry:
        more = _method_facts(registry.get(name)()) if kind == Listed.METHODS else ()
        origin = registry.origin(name)
        plugin = () if origin == OWN else (f"from: {origin}",)
        rows.append((name, registry.sentence(name), *more, *plugin))
    return rows


def _method_facts(method: "Method") -> tuple[str, ...]:
    """Return citation, carried prior, stages and cost."""
    return (
        method.citation,
        f"carries: {method.prior}",
        f"trains: {' → '.join(stage.title for stage in method.stages())}",
        f"costs: {method.cost:.1f} × Softmax",
    )


def _recipe_rows() -> list[tuple[str, ...]]:
    """Return name, sentence, cost and command of each."""
    from tailshift import recipes
    from tailshift.evaluation.results import training_command
    from tailshift.recipes import load_recipe

    configs = {name: load_recipe(name) for name in recipes.recipe_names()}
    return [
        (name, recipes.recipe_sentence(name), _cost(config), training_command(config))
        for name, config in configs.items()
    ]


def _cost(config: "RunConfig") -> str:
    """Return how many epochs of how many images, if that is known, are trained."""
    shape = config.data.known_shape()
    epochs = f"{config.epochs} epochs"
    return epochs if shape is None else f"{epochs} × {shape.num_samples:,} images"


data_app = typer.Typer(help="Validate a dataset before training.")
app.add_typer(data_app, name="data", epilog="Example: tailshift data check digits_lt")


@data_app.callback()
def _group() -> None:
    """Keep ``check`` a subcommand, although there is only one."""


@data_app.command(epilog="Example: tailshift data check digits_lt")
def check(
    name: Annotated[
        str,
        typer.Argument(help="A data set, or folder:PATH, csv:FILE, list:FILE."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="data.KEY=VALUE",
            help="Change a setting, e.g. data.image_root=pictures.",
        ),
    ] = None,
    data_root: DataRoot = None,
    plugin: Plugins = None,
    all_images: Annotated[
        bool, typer.Option("--all", help="Decode every image, not only 500 per split.")
    ] = False,
) -> None:
    """Check lists, labels, counts and files of a dataset."""
    from tailshift.data import check_data
    from tailshift.data.own_images import OwnImages
    from tailshift.recipes import dataset_of
    from tailshift.training.own_network import what_features_see

    dataset = dataset_of(name, settings or [])
    found = check_data(dataset, data_root, all_images=all_images)
    for line in found.summary:
        print(printable(line))
    if isinstance(dataset, OwnImages) and found.is_sound:
        for line in what_features_see(dataset):
            print(line)
    for fault in found.faults:
        print(f"error: {printable(fault)}", file=sys.stderr)
    if not found.is_sound:
        raise SystemExit(2)
