"""Commands on data: data check."""

import sys
from typing import Annotated

import typer

from tailshift.cli.app import DataRoot, app
from tailshift.data.check import check_data

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
    data_root: DataRoot = None,
    all_images: Annotated[
        bool, typer.Option("--all", help="Decode every image, not 500 of each split.")
    ] = False,
) -> None:
    """Verify lists, labels, counts and files of a data set."""
    found = check_data(name, data_root, all_images=all_images)
    for line in found.summary:
        print(line)
    for fault in found.faults:
        print(f"error: {fault}", file=sys.stderr)
    if not found.is_sound:
        raise SystemExit(2)
