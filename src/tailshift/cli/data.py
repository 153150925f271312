"""Commands on data: data check."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tailshift.cli.app import DataRoot, app
from tailshift.config import RunConfig
from tailshift.data import Dataset, check_data, parse_data_option
from tailshift.recipes import load_recipe, parse_override

data_app = typer.Typer(help="Look at data before hours are spent on it.")
app.add_typer(data_app, name="data", epilog="Example: tailshift data check digits_lt")


@data_app.callback()
def _group() -> None:
    """Keep ``check`` a command of its own, though it is the only one."""


@data_app.command(epilog="Example: tailshift data check digits_lt")
def check(
    name: Annotated[
        str,
        typer.Argument(help="A data set, or folder:PATH, csv:FILE, list:FILE."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="data.KEY=VALUE, e.g. data.image_root=pictures."),
    ] = None,
    data_root: DataRoot = None,
    all_images: Annotated[
        bool, typer.Option("--all", help="Decode every image, not 500 of each split.")
    ] = False,
) -> None:
    """Verify lists, labels, counts and files of a data set."""
    dataset = _dataset(name, settings or [])
    found = check_data(dataset, data_root, all_images=all_images)
    for line in found.summary:
        print(line)
    for fault in found.faults:
        print(f"error: {fault}", file=sys.stderr)
    if not found.is_sound:
        raise SystemExit(2)


def _dataset(option: str, settings: Sequence[str]) -> Dataset:
    """Return the data set, its settings checked as those of a run are."""
    chosen: dict[str, Any] = dict(parse_data_option(option))
    for setting in settings:
        change = parse_override(setting).get("data")
        if not isinstance(change, dict):
            raise ValueError(
                f"`--set` must be data.KEY=VALUE here, but is {setting!r}."
            )
        chosen |= change
    run = load_recipe("digits_lt").to_mapping()  # a sound one, for its other sections
    return RunConfig.from_mapping(run | {"data": chosen}).data
