"""Ours beside the paper's: for the terminal, Markdown, LaTeX and as CSV."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.files import atomic_write
from tailshift.metrics.table import NOTHING
from tailshift.paper.comparison import Comparison
from tailshift.report.latex import bold, latex_table, latex_text
from tailshift.report.rows import short_target, target_label
from tailshift.report.tables import markdown_text
from tailshift.target_names import is_shift
from tailshift.text import printable

OURS = "ours (n): mean ± sd of n seeds, last epoch, uniform test set"
OURS_SHIFTED = "ours (n): mean ± sd of n seeds, last epoch, expected over all test sets"
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Entry:
    """One cell's text."""

    text: str
    is_best: bool = False
    """Whether it is the best of its column, among ours or among the paper's."""


@dataclass(frozen=True)
class Line:
    """Ours or the paper's numbers of a row."""

    name: str
    """The row's name with the marks of its notes; empty on its second line."""
    whose: str
    """``"ours (3)"`` or ``"paper"``."""
    entries: tuple[Entry, ...]


def comparison_lines(
    comparisons: Sequence[Comparison], notes: dict[str, int], *, ranked: bool
) -> list[Line]:
    """Return two lines for each row, ours and the paper's.

    Args:
        comparisons: The cells of one table, row by row.
        notes: From :func:`numbered_notes`.
        ranked: Mark the best of each column.
    """
    best = _best(comparisons) if ranked else set()
    lines = []
    for row, cells in _rows(comparisons).items():
        shared = set.intersection(*(set(_parts(cell)) for cell in cells))
        name = row + _marks(shared, notes)
        ours = (Entry(_ours(cell), (cell, True) in best) for cell in cells)
        paper = (
            Entry(_paper(cell, notes, shared), (cell, False) in best) for cell in cells
        )
        lines.append(Line(name, _whose(cells), tuple(ours)))
        lines.append(Line("", "paper", tuple(paper)))
    return lines


def comparison_columns(comparisons: Iterable[Comparison]) -> list[str]:
    """Return the columns in the order of their first appearance."""
    return list(dict.fromkeys(cell.column for cell in comparisons))


def number_format(cell: Comparison) -> str:
    """Return how a cell's numbers are written, as a format."""
    return {"count": ",.0f", "setting": "g"}.get(cell.quantity, f".{cell.decimals}f")


def number_text(value: float, style: str, nothing: str = NOTHING) -> str:
    """Return a number as text; what stands for nothing if it is NaN."""
    return nothing if math.isnan(value) else format(value, style)


def numbered_notes(comparisons: Iterable[Comparison]) -> dict[str, int]:
    """Return all notes with their numbers, from 1."""
    parts = dict.fromkeys(part for cell in comparisons for part in _parts(cell))
    return {part: number for number, part in enumerate(parts, start=1)}


def footnotes(comparisons: Sequence[Comparison], notes: dict[str, int]) -> list[str]:
    """Return what stands below a table: what ours are, and the numbered notes."""
    numbered = [f"{_superscript(number)} {part}" for part, number in notes.items()]
    if not any(cell.num_seeds for cell in comparisons):
        return numbered
    is_shifted = any(
        ":" in column and is_shift(column) for column in comparison_columns(comparisons)
    )
    if not is_shifted:
        return [OURS, *numbered]
    return [OURS_SHIFTED, *_spread_notes(comparisons), *numbered]


def _spread_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Return how far one test set can lie from ours, the largest of each column."""
    largest: dict[str, float] = {}
    for cell in comparisons:
        if not math.isnan(cell.subset_sd):
            largest[cell.column] = max(largest.get(cell.column, 0), cell.subset_sd)
    if not largest:
        return []
    sds = ", ".join(f"{value:.1f}" for value in largest.values())
    return [f"sd of ours over test sets with the paper's counts, by column: {sds}"]


def _rows(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    rows: dict[str, list[Comparison]] = {}
    for cell in comparisons:
        rows.setdefault(cell.row, []).append(cell)
    return rows


def _best(comparisons: Sequence[Comparison]) -> set[tuple[Comparison, bool]]:
    """Return the best cells of each column as printed: (cell, whether ours)."""
    best = set()
    for column in comparison_columns(comparisons):
        cells = [cell for cell in comparisons if cell.column == column]
        for is_ours in (True, False):
            values = {c: c.ours_mean if is_ours else c.paper for c in cells}
            known = {c: v for c, v in values.items() if not math.isnan(v)}
            if len(known) < 2:
                continue  # nobody to be better than
            choose = max if cells[0].is_high_better else min
            style = number_format(cells[0])
            printed = format(choose(known.values()), style)
            best |= {
                (c, is_ours) for c, v in known.items() if format(v, style) == printed
            }
    return best


def _whose(cells: Sequence[Comparison]) -> str:
    """Return "ours" with the number of seeds, if there are any."""
    numbers = {cell.num_seeds for cell in cells if not math.isnan(cell.ours_mean)}
    if numbers <= {0}:
        return "ours"
    low, high = min(numbers), max(numbers)
    return f"ours ({low})" if low == high else f"ours ({low}–{high})"


def _ours(cell: Comparison) -> str:
    mean = number_text(cell.ours_mean, number_format(cell))
    if cell.num_seeds < 2:
        return mean
    return f"{mean} ± {number_text(cell.ours_sd, number_format(cell))}"


def _paper(cell: Comparison, notes: dict[str, int], shared: set[str]) -> str:
    text = number_text(cell.paper, number_format(cell))
    marks = _marks(set(_parts(cell)) - shared, notes)
    if math.isnan(cell.difference):
        return f"{text} {marks}".rstrip()  # set apart: no exponent
    return f"{text} ({_signed(cell.difference, number_format(cell))}){marks}"


def _signed(value: float, style: str) -> str:
    """Return a number with its sign; none for what is printed as zero."""
    text = format(value, f"+{style}").replace("-", "−")
    return text if set(text) & set("123456789") else text[1:]


def _parts(cell: Comparison) -> list[str]:
    return cell.note.split("; ") if cell.note else []


def _marks(parts: Iterable[str], notes: dict[str, int]) -> str:
    numbers = sorted(notes[part] for part in parts)
    return "˒".join(_superscript(number) for number in numbers)


def _superscript(number: int) -> str:
    return str(number).translate(SUPERSCRIPTS)


_CSV_COLUMNS = (
    "table",
    "row",
    "column",
    "ours_mean",
    "ours_sd",
    "num_seeds",
    "paper",
    "difference",
    "subset_sd",
    "standard_error",
    "note",
)
WIDTH = 80  # of a terminal


def comparison_table(
    comparisons: Sequence[Comparison], *, title: str, corner: str = "Method"
) -> Table:
    """Return a table for the terminal: ours and the paper's below each other.

    The best of each column is bold, if the rows are methods. If that is too wide
    for 80 characters, deviations get a line of their own and differences are dropped.

    Args:
        comparisons: The cells of one table, row by row.
        title: The table's.
        corner: What a row is.
    """
    notes = numbered_notes(comparisons)
    lines = comparison_lines(comparisons, notes, ranked=corner == "Method")
    columns = comparison_columns(comparisons)
    is_narrow = _width(lines, columns) > WIDTH
    below = footnotes(comparisons, notes)
    table = Table(
        title=title,
        caption="\n".join(below) or None,
        caption_justify="left",
        min_width=min(max(map(len, [title, *below])), WIDTH),  # or they would wrap
        box=box.SIMPLE_HEAD,
        show_edge=False,  # 80 characters are just enough
        padding=(0, 0 if is_narrow else 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(corner, no_wrap=True)
    table.add_column("", no_wrap=True)
    for column in columns:
        is_short = is_narrow and is_shift(column)
        head = short_target(column) if is_short else target_label(column)
        table.add_column(Text(head), justify="right", no_wrap=True)
    for name, line in _named(_narrow(lines) if is_narrow else lines, is_narrow):
        table.add_row(Text(printable(name)), line.whose, *map(_text, line.entries))
    return table


def _width(lines: Sequence[Line], columns: Sequence[str]) -> int:
    """Return how wide a table of whole cells would be, two spaces between columns."""
    names = [line.name.partition(", ")[0] for line in lines]
    cells = zip(*(line.entries for line in lines), strict=True)
    widths = [
        max(len(column), *(len(entry.text) for entry in entries))
        for column, entries in zip(columns, cells, strict=True)
    ]
    words = max(map(len, names)) + max(len(line.whose) for line in lines) + 2
    return words + sum(width + 2 for width in widths)


def _named(lines: Sequence[Line], is_narrow: bool) -> list[tuple[str, Line]]:
    """Return each line with its part of the row's name, over two lines if long."""
    named, rest = [], ""
    for line in lines:
        first, _, second = line.name.partition(", ")  # "LADE, 90 epochs"
        if is_narrow and not second:
            before, _, last = first.rpartition(" ")
            first, second = (before, last) if before else (last, "")
        named.append((first or rest, line))
        rest = second
    return named


def _narrow(lines: Iterable[Line]) -> list[Line]:
    """Return lines of bare means, deviations below them, and bare printed numbers."""
    narrow = []
    for line in lines:
        means, deviations = [], []
        for entry in line.entries:
            mean, _, spread = entry.text.partition(" ± ")
            means.append(Entry(mean.partition(" (")[0], entry.is_best))
            deviations.append(Entry(f"±{spread}" if spread else ""))
        narrow.append(Line(line.name, line.whose, tuple(means)))
        if any(entry.text for entry in deviations):
            narrow.append(Line("", "", tuple(deviations)))
    return narrow


def _text(entry: Entry) -> Text:
    return Text(entry.text, style="bold" if entry.is_best else "")


def comparison_markdown(
    comparisons: Sequence[Comparison], *, corner: str = "Method"
) -> str:
    """Return the same as a Markdown table, its notes below it."""
    notes = numbered_notes(comparisons)
    columns = comparison_columns(comparisons)
    lines = [
        [markdown_text(corner), "", *(markdown_text(target_label(c)) for c in columns)],
        ["---", "---", *("---:" for _ in columns)],
    ]
    for line in comparison_lines(comparisons, notes, ranked=corner == "Method"):
        cells = [
            f"**{markdown_text(entry.text)}**"
            if entry.is_best
            else markdown_text(entry.text)
            for entry in line.entries
        ]
        lines.append([markdown_text(line.name), line.whose, *cells])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    below = "".join(
        f"- {markdown_text(note)}\n" for note in footnotes(comparisons, notes)
    )
    return f"{table}\n{below}" if below else table


def comparison_latex(
    comparisons: Sequence[Comparison], *, title: str, corner: str = "Method"
) -> str:
    """Return the same as a LaTeX table with booktabs rules, notes in its caption."""
    notes = numbered_notes(comparisons)
    columns = comparison_columns(comparisons)
    rows = []
    for line in comparison_lines(comparisons, notes, ranked=corner == "Method"):
        cells = [
            bold(latex_text(entry.text)) if entry.is_best else latex_text(entry.text)
            for entry in line.entries
        ]
        rows.append([latex_text(line.name), latex_text(line.whose), *cells])
    sentences = [title, *footnotes(comparisons, notes)]
    return latex_table(
        [latex_text(corner), "", *(latex_text(target_label(c)) for c in columns)],
        rows,
        caption=latex_text(". ".join(sentences) + "."),
        num_names=2,
    )


def write_comparison_csv(path: Path, comparisons: Iterable[Comparison]) -> None:
    """Write one line a cell, accuracies in percent; what is not known is left empty."""
    with (
        atomic_write(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_CSV_COLUMNS)
        for cell in comparisons:
            writer.writerow([_csv_value(cell, name) for name in _CSV_COLUMNS])


def _csv_value(cell: Comparison, name: str) -> str:
    value = getattr(cell, name)
    if not isinstance(value, float):
        return str(value)
    style = number_format(cell).replace(",", "")
    if name != "paper" and cell.quantity in ("percent", "score"):
        style = f".{cell.decimals + 1}f"  # one digit more than is printed
    return number_text(value, style, "")
