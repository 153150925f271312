"""Tables of accuracy by target: for the terminal, in Markdown and as CSV."""

import csv
import html
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.evaluation.records import AS_IS
from tailshift.evaluation.summary import Summary
from tailshift.files import atomic_write
from tailshift.report.rows import (
    NOTHING,
    Cell,
    Row,
    best_in,
    columns_of,
    rows_by_method,
)

__all__ = [
    "rows_by_method",
    "summary_table",
    "target_label",
    "to_markdown",
    "write_csv",
]

CSV_COLUMNS = (
    "method",
    "target",
    "raw_mean",
    "raw_sd",
    "compensated_mean",
    "compensated_sd",
)
MAX_TERMINAL_COLUMNS = 5  # so many methods side by side fit into 80 characters


def target_label(target: str) -> str:
    """Return a target's name for people.

    Example:
        >>> target_label("backward:10")
        'backward 10'
    """
    kind, ratio = split_target(target)
    return f"{kind} {ratio}".rstrip()


def split_target(target: str) -> tuple[str, str]:
    """Return the kind of shift and its ratio; a target of another kind has no ratio.

    Example:
        >>> split_target("backward:10"), split_target("as_is")
        (('backward', '10'), ('as is', ''))
    """
    kind, _, ratio = target.partition(":")
    if kind in ("forward", "backward"):
        return kind, ratio
    return ("as is" if target == AS_IS else target), ""


def summary_table(summaries: Iterable[Summary]) -> Table:
    """Return accuracy by target as a table for the terminal, the best in bold.

    Up to five methods stand side by side, a target a line, and fit into 80 characters;
    more of them stand below each other, a target a column.
    """
    rows = rows_by_method(summaries)
    if len(rows) <= MAX_TERMINAL_COLUMNS:
        return _targets_down(rows)
    return _targets_across(rows)


def _targets_down(rows: Sequence[Row]) -> Table:
    table = _empty_table("Target")
    for row in rows:
        name, _, last = row.name.rpartition(" ")
        table.add_column(Text(f"{name}\n{last}".strip()), justify="right", no_wrap=True)
    for target in columns_of(rows):
        best = best_in(rows, target)
        cells = [_terminal_cell(row, target, best) for row in rows]
        table.add_row(Text(target_label(target)), *cells)
    return table


def _targets_across(rows: Sequence[Row]) -> Table:
    targets = columns_of(rows)
    best = {target: best_in(rows, target) for target in targets}
    table = _empty_table("Method")
    for target in targets:
        table.add_column(Text(_short(target)), justify="right")
    for row in rows:
        cells = [_terminal_cell(row, target, best[target], "\n") for target in targets]
        table.add_row(Text(row.name), *cells)
    return table


def _empty_table(corner: str) -> Table:
    table = Table(
        title="Accuracy in % by target distribution",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(corner)
    return table


def _short(target: str) -> str:
    kind, ratio = split_target(target)
    return f"{kind[:4]}\n{ratio}".rstrip()


def _terminal_cell(row: Row, column: str, best: set[str], gap: str = " ") -> Text:
    cell = row.cells.get(column, Cell(math.nan, math.nan, 0))
    style = "bold" if row.name in best else ""
    sd_text = cell.sd_text if gap == " " else cell.sd_text.replace(" ", "")
    return Text(f"{cell.mean_text}{gap}{sd_text}".rstrip(), style=style)


def to_markdown(summaries: Iterable[Summary]) -> str:
    """Return accuracy by target as a Markdown table, a method a line, best in bold."""
    rows = rows_by_method(summaries)
    targets = columns_of(rows)
    best = {target: best_in(rows, target) for target in targets}
    lines = [
        ["Accuracy in %", *(markdown_text(target_label(target)) for target in targets)],
        ["---", *("---:" for _ in targets)],
    ]
    for row in rows:
        cells = [str(row.cells[t]) if t in row.cells else NOTHING for t in targets]
        marked = [
            f"**{cell}**" if row.name in best[target] else cell
            for target, cell in zip(targets, cells, strict=True)
        ]
        lines.append([markdown_text(row.name), *marked])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_text(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is, on one line."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escaped)


def write_csv(path: Path, summaries: Iterable[Summary]) -> None:
    """Write one line for each method and target, in percent with two decimals.

    A value that is not known (no compensated result) is left empty.
    """
    with (
        atomic_write(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for summary in summaries:
            values = (getattr(summary, column) for column in CSV_COLUMNS[2:])
            writer.writerow([summary.method, summary.target, *map(_percent, values)])


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.2f}"
