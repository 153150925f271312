"""The sheet that figures are drawn on: sizes, letters, colours, axes and files."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context, rcdefaults
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tailshift.files import atomic_write
from tailshift.report.style import (
    MAX_CLASS_NAME,
    MAX_NAMED_CLASSES,
    NEUTRAL,
    method_styles,
    one_line,
)

COLUMN, PAGE = 3.45, 7.1
"""Width in inches of one column of a two-column paper, and of both."""

POINTS = 8.0
"""Size of all letters at that width."""

MAX_METHOD_NAME = 40
LETTER = 0.075  # inches that a letter of a name takes
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "pentagon": "p",
}
GAIN, LOSS = "#0072B2", "#D55E00"  # told apart with any colour vision, and in grey

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#3a424d",
    "axes.grid": True,
    "axes.labelsize": POINTS,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": POINTS,
    "font.sans-serif": ["DejaVu Sans"],  # comes with Matplotlib
    "font.size": POINTS,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.fontsize": POINTS,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "tailshift",
    "xtick.labelsize": POINTS,
    "xtick.major.width": 0.6,
    "ytick.labelsize": POINTS,
    "ytick.major.width": 0.6,
}


@contextmanager
def print_style() -> Iterator[None]:
    """Draw and save for print within this block, whatever the user's settings are."""
    with rc_context():
        rcdefaults()
        with rc_context(STYLE):
            yield


def new_panels(
    num_panels: int, *, height: float, max_columns: int = 4, width: float | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels that share both axes, row by row.

    Args:
        num_panels: At least one. A single one is as wide as a column.
        height: Height of one panel, in inches.
        max_columns: Panels side by side.
        width: Width of one panel, in inches; by default several fill the page.
    """
    rows = -(-num_panels // max_columns)
    columns = -(-num_panels // rows)
    full = COLUMN if columns == 1 else PAGE
    size = (full if width is None else width * columns, height * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for unused in panels[num_panels:]:
        unused.remove()
    for panel in panels[max(num_panels - columns, 0) : num_panels]:
        panel.tick_params(labelbottom=True)  # also above a gap in the last row
    return figure, panels[:num_panels]


def room_for(names: Sequence[str]) -> float:
    """Return the height in inches that classes' names take below a panel.

    Example:
        >>> room_for(["cat", "automobile"]), room_for(["cat"] * 100)
        (0.75, 0.0)
    """
    if len(names) > MAX_NAMED_CLASSES:
        return 0.0
    return LETTER * min(max(map(len, names)), MAX_CLASS_NAME)


def method_looks(keys: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return colour and marker of each method, those of the report's page.

    Example:
        >>> method_looks({"LADE": "lade"})
        {'LADE': {'color': '#009E73', 'marker': 'o'}}
    """
    styles = method_styles(keys)
    return {
        method: {"color": colour, "marker": MARKERS[symbol]}
        for method, (colour, symbol) in styles.items()
    }


def line_look(is_compensated: bool) -> dict[str, Any]:
    """Return how a line differs: raw ones are dashed and their markers are open."""
    if is_compensated:
        return {"linestyle": "-"}
    return {"linestyle": (0, (3, 1.5)), "markerfacecolor": "white"}


def as_text(name: str, limit: int = MAX_METHOD_NAME) -> str:
    r"""Return a name as Matplotlib shows it literally: no mathematics, one line.

    Example:
        >>> as_text("from $5 to $9")
        'from \\$5 to \\$9'
    """
    name = one_line(name)
    if len(name) > limit:
        name = name[: limit - 1] + "…"
    # A name in a legend that begins with an underscore would be skipped.
    return name.replace("$", r"\$").replace("_", " _", 1 if name[:1] == "_" else 0)


def draw_level(axes: Axes, height: float, label: str) -> None:
    """Draw the dotted line that theory asks for."""
    axes.axhline(height, color=NEUTRAL, linestyle=":", linewidth=1.4, label=label)


def label_classes(axes: Axes, names: Sequence[str]) -> None:
    """Put the classes on the x axis: their names, or their ranks if there are many."""
    num_classes = len(names)
    axes.set_xlim(-0.6, num_classes - 0.4)
    axes.grid(False, axis="x")
    if num_classes > MAX_NAMED_CLASSES:
        ranks = [1, *(round(part * num_classes / 4) for part in range(1, 5))]
        labels = [f"{ranks[0]}", "", f"{ranks[2]}", "", f"{ranks[4]}"]
        axes.set_xticks([rank - 1 for rank in ranks], labels)
        return
    labels = [as_text(name, MAX_CLASS_NAME) for name in names]
    axes.set_xticks(range(num_classes), labels, rotation=90)


def name_axes(figure: Figure, *, x: str = "", y: str) -> None:
    """Name the axes that all panels share; by default x is the classes' order."""
    figure.supxlabel(x or "class, the most frequent first", fontsize="medium")
    figure.supylabel(y, fontsize="medium")


def add_legend(figure: Figure, axes: Axes, *, columns: int) -> None:
    """Put the legend of some axes above the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)


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
