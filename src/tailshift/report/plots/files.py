"""Figures on disk: SVG and PNG, the same bytes from the same numbers."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tailshift.files import atomic_write
from tailshift.report.plots.canvas import print_style

KINDS = ("svg", "png")
DPI = 300


def figure_paths(folder: Path, name: str) -> list[Path]:
    """Return the files that a figure is kept in."""
    return [folder / f"{name}.{kind}" for kind in KINDS]


def save_figure(
    figure: Figure, paths: Sequence[Path], *, overwrite: bool = False, dpi: int = DPI
) -> None:
    """Write a figure to each path, as what its suffix says.

    Args:
        figure: Drawn with the functions of this package.
        paths: Ending in ``.svg`` or ``.png``; folders are made.
        overwrite: Replace files that exist.
        dpi: Pixels an inch of a PNG.
    """
    with print_style(), warnings.catch_warnings():
        # A name in letters that the font lacks shows boxes; in an SVG it is all there.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        for path in paths:
            kind = path.suffix.removeprefix(".")
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            with atomic_write(path, overwrite=overwrite) as temporary:
                figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)
