"""Commands that tell what there is: list."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tailshift import recipes
from tailshift.cli.app import app, console
from tailshift.data import DATASETS
from tailshift.methods import METHODS
from tailshift.models import MODELS
from tailshift.registry import Registry
from tailshift.training.data_shape import known_shape


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
    if not console.is_terminal:
        print("\n".join("\t".join(row) for row in rows))
        return
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    for name, sentence, *more in rows:  # narrow terminals have room for two columns
        table.add_row(_above(name, more[:1], "  "), _above(sentence, more[1:], ""))
    console.print(table)


def _above(first: str, more: Sequence[str], indent: str) -> Text:
    below = [Text(f"{indent}{part}", style="dim") for part in more]
    return Text("\n").join([Text(first), *below])


def _sentences(registry: Registry[Any]) -> list[tuple[str, ...]]:
    return [(name, registry.get(name).sentence) for name in registry]


def _method_rows() -> list[tuple[str, ...]]:
    """Return name, sentence, citation, carried prior, stages and cost of each."""
    methods = ((name, METHODS.get(name)()) for name in METHODS)
    return [
        (
            name,
            method.sentence,
            method.citation,
            f"carries: {method.prior}",
            f"trains: {' → '.join(stage.title for stage in method.stages())}",
            f"costs: {method.cost:.1f} × Softmax",
        )
        for name, method in methods
    ]


def _recipe_rows() -> list[tuple[str, ...]]:
    return [
        (name, recipes.recipe_sentence(name), _cost(name))
        for name in recipes.recipe_names()
    ]


def _cost(recipe: str) -> str:
    """Return how many epochs of how many images, where that is known, are trained."""
    config = recipes.load_recipe(recipe)
    shape = known_shape(config.data)
    epochs = f"{config.epochs} epochs"
    return epochs if shape is None else f"{epochs} × {shape.num_samples:,} images"
