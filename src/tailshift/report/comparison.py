"""Tables of ours beside the paper's: for the terminal, in Markdown and as CSV."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.evaluation.comparison import Comparison
from tailshift.files import atomic_write
from tailshift.report.rows import NOTHING
from tailshift.report.tables import markdown_text

CSV_COLUMNS = (
    "table",
    "row",
    "column",
    "ours_mean",
    "ours_sd",
    "num_seeds",
    "paper",
    "difference",
    "note",
)

FORMATS = {"percent": ".1f", "count": ",.0f", "setting": "g"}
OURS = "ours (n): mean ± sd of n seeds, last epoch, uniform test set"
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

Line: TypeAlias = tuple[str, str, list[str]]
"""The row's name (empty on its second line), whose numbers these are, the numbers."""


def comparison_table(
    comparisons: Sequence[Comparison], *, title: str, corner: str = "Method"
) -> Table:
    """Return a table for the terminal: two lines a row, ours and the paper's.

    Args:
        comparisons: The cells of one table, row by row.
        title: The table's.
        corner: What a row is.
    """
    notes = _numbered_notes(comparisons)
    footnotes = _footnotes(comparisons, notes)
    table = Table(
        title=title,
        caption="\n".join(footnotes) or None,
        caption_justify="left",
        min_width=min(max(map(len, [title, *footnotes])), 80),  # or they would wrap
        box=box.SIMPLE_HEAD,
        show_edge=False,  # 80 characters are just enough
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(corner, no_wrap=True)
    table.add_column("", no_wrap=True)
    for column in _columns(comparisons):
        table.add_column(Text(column), justify="right", no_wrap=True)
    rest = ""  # what stands after a comma goes under the name
    for name, whose, cells in _lines(comparisons, notes):
        first, _, second = name.partition(", ")
        table.add_row(Text(first or rest), whose, *map(Text, cells))
        rest = second
    return table


def comparison_markdown(
    comparisons: Sequence[Comparison], *, corner: str = "Method"
) -> str:
    """Return the same as a Markdown table, its notes below it."""
    notes = _numbered_notes(comparisons)
    columns = _columns(comparisons)
    lines = [
        [markdown_text(corner), "", *map(markdown_text, columns)],
        ["---", "---", *("---:" for _ in columns)],
        *(
            [markdown_text(name), whose, *map(markdown_text, cells)]
            for name, whose, cells in _lines(comparisons, notes)
        ),
    ]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    footnotes = "".join(
        f"- {markdown_text(note)}\n" for note in _footnotes(comparisons, notes)
    )
    return f"{table}\n{footnotes}" if footnotes else table


def write_comparison_csv(path: Path, comparisons: Iterable[Comparison]) -> None:
    """Write one line a cell, accuracies in percent; what is not known is left empty."""
    with (
        atomic_write(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for cell in comparisons:
            writer.writerow([_csv_value(cell, name) for name in CSV_COLUMNS])


def _csv_value(cell: Comparison, name: str) -> str:
    value = getattr(cell, name)
    if not isinstance(value, float):
        return str(value)
    # Printed accuracies have one decimal, ours are given two.
    is_ours = cell.quantity == "percent" and name != "paper"
    style = ".2f" if is_ours else FORMATS[cell.quantity].replace(",", "")
    return _number(value, style, "")


def _columns(comparisons: Iterable[Comparison]) -> list[str]:
    return list(dict.fromkeys(cell.column for cell in comparisons))


def _rows(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    rows: dict[str, list[Comparison]] = {}
    for cell in comparisons:
        rows.setdefault(cell.row, []).append(cell)
    return rows


def _lines(comparisons: Sequence[Comparison], notes: dict[str, int]) -> list[Line]:
    """Return two lines for each row, ours and the paper's."""
    lines: list[Line] = []
    for row, cells in _rows(comparisons).items():
        shared = set.intersection(*(set(_parts(cell)) for cell in cells))
        ours = [_ours(cell) for cell in cells]
        paper = [_paper(cell, notes, shared) for cell in cells]
        lines.append((row + _marks(shared, notes), _whose(cells), ours))
        lines.append(("", "paper", paper))
    return lines


def _whose(cells: Sequence[Comparison]) -> str:
    """Return "ours" with the number of seeds, where there are any."""
    numbers = {cell.num_seeds for cell in cells if not math.isnan(cell.ours_mean)}
    if numbers <= {0}:
        return "ours"
    low, high = min(numbers), max(numbers)
    return f"ours ({low})" if low == high else f"ours ({low}–{high})"


def _ours(cell: Comparison) -> str:
    mean = _number(cell.ours_mean, FORMATS[cell.quantity], NOTHING)
    if cell.num_seeds < 2:
        return mean
    return f"{mean} ± {_number(cell.ours_sd, FORMATS[cell.quantity], NOTHING)}"


def _paper(cell: Comparison, notes: dict[str, int], shared: set[str]) -> str:
    text = _number(cell.paper, FORMATS[cell.quantity], NOTHING)
    marks = _marks(set(_parts(cell)) - shared, notes)
    if math.isnan(cell.difference):
        return f"{text} {marks}".rstrip()  # set apart: no exponent
    return f"{text} ({_signed(cell.difference, FORMATS[cell.quantity])}){marks}"


def _signed(value: float, style: str) -> str:
    """Return a number with its sign; none for what is printed as zero."""
    text = format(value, f"+{style}").replace("-", "−")
    return text if set(text) & set("123456789") else text[1:]


def _number(value: float, style: str, nothing: str) -> str:
    return nothing if math.isnan(value) else format(value, style)


def _parts(cell: Comparison) -> list[str]:
    return cell.note.split("; ") if cell.note else []


def _numbered_notes(comparisons: Iterable[Comparison]) -> dict[str, int]:
    parts = dict.fromkeys(part for cell in comparisons for part in _parts(cell))
    return {part: number for number, part in enumerate(parts, start=1)}


def _marks(parts: Iterable[str], notes: dict[str, int]) -> str:
    numbers = sorted(notes[part] for part in parts)
    return "˒".join(_superscript(number) for number in numbers)


def _footnotes(comparisons: Iterable[Comparison], notes: dict[str, int]) -> list[str]:
    is_measured = any(cell.num_seeds for cell in comparisons)
    numbered = [f"{_superscript(number)} {part}" for part, number in notes.items()]
    return [OURS, *numbered] if is_measured else numbered


def _superscript(number: int) -> str:
    return str(number).translate(SUPERSCRIPTS)
