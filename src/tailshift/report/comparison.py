"""Tables of ours beside the paper's: terminal, Markdown, LaTeX and CSV."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.evaluation.comparison import Comparison
from tailshift.evaluation.shifts import is_shift
from tailshift.files import atomic_write
from tailshift.report.comparison_lines import (
    Entry,
    Line,
    comparison_columns,
    comparison_lines,
    footnotes,
    number_format,
    number_text,
    numbered_notes,
)
from tailshift.report.latex import bold, latex_table, latex_text
from tailshift.report.tables import markdown_text, short_target, target_label

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
WIDTH = 80  # of a terminal


def comparison_table(
    comparisons: Sequence[Comparison], *, title: str, corner: str = "Method"
) -> Table:
    """Return a table for the terminal: ours and the paper's below each other.

    The best of each column is bold, where the rows are methods. Where that is too wide
    for 80 characters, deviations get a line of their own and differences are left out.

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
        table.add_row(Text(name), line.whose, *map(_text, line.entries))
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
        writer.writerow(CSV_COLUMNS)
        for cell in comparisons:
            writer.writerow([_csv_value(cell, name) for name in CSV_COLUMNS])


def _csv_value(cell: Comparison, name: str) -> str:
    value = getattr(cell, name)
    if not isinstance(value, float):
        return str(value)
    style = number_format(cell).replace(",", "")
    if name != "paper" and cell.quantity in ("percent", "score"):
        style = f".{cell.decimals + 1}f"  # one digit more than is printed
    return number_text(value, style, "")
