"""Tables of scores for the terminal, in Markdown, in LaTeX and as CSV."""

import csv
import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.evaluation.records import effective_text
from tailshift.evaluation.summary import Summary
from tailshift.files import atomic_write
from tailshift.metrics.table import METRICS, NOTHING
from tailshift.report.latex import bold, latex_table, latex_text
from tailshift.report.rows import (
    Cell,
    TableRow,
    best_in,
    columns_of,
    rows_by_method,
    short_target,
    size_note,
    sizes_of,
    spread_note,
    target_label,
)
from tailshift.text import csv_cell, printable

_MAX_TERMINAL_COLUMNS = 5  # this many methods side by side fit into 80 characters


def summary_table(summaries: Iterable[Summary]) -> Table:
    """Return a score by target as a table for the terminal, the best in bold.

    Up to five methods stand side by side, a target a line, and fit into 80 characters;
    more of them stand below each other, a target a column.
    """
    summaries = list(summaries)
    rows = rows_by_method(summaries)
    title = f"{_heading(summaries)} by target distribution"
    down = len(rows) <= _MAX_TERMINAL_COLUMNS
    table = _targets_down(rows, title) if down else _targets_across(rows, title)
    notes = [size_note(summaries) if sizes_of(rows) else "", spread_note(summaries)]
    table.caption = "\n".join(filter(None, notes)) or None
    return table


def _targets_down(rows: Sequence[TableRow], title: str) -> Table:
    table = _empty_table("Target", title)
    for row in rows:
        name, _, last = printable(row.name).rpartition(" ")
        table.add_column(Text(f"{name}\n{last}".strip()), justify="right", no_wrap=True)
    sizes = sizes_of(rows)
    if sizes:
        table.add_column("n", justify="right", style="dim")
    for target in columns_of(rows):
        best = best_in(rows, target)
        cells = [_terminal_cell(row, target, best) for row in rows]
        size = [sizes[target]] if sizes else []
        table.add_row(Text(printable(target_label(target))), *cells, *size)
    return table


def _targets_across(rows: Sequence[TableRow], title: str) -> Table:
    targets = columns_of(rows)
    best = {target: best_in(rows, target) for target in targets}
    table = _empty_table("Method", title)
    for target in targets:
        table.add_column(Text(printable(short_target(target))), justify="right")
    for row in rows:
        cells = [_terminal_cell(row, target, best[target], "\n") for target in targets]
        table.add_row(Text(printable(row.name)), *cells)
    if sizes := sizes_of(rows):
        table.add_row("n", *map(sizes.__getitem__, targets), style="dim")
    return table


def _empty_table(corner: str, title: str) -> Table:
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column(corner)
    return table


def _terminal_cell(row: TableRow, column: str, best: set[str], gap: str = " ") -> Text:
    cell = row.cells.get(column, Cell(math.nan, math.nan, 0))
    style = "bold" if row.name in best else ""
    sd_text = cell.sd_text if gap == " " else cell.sd_text.replace(" ", "")
    return Text(f"{cell.mean_text}{gap}{sd_text}".rstrip(), style=style)


def _heading(summaries: Sequence[Summary]) -> str:
    """Return the score that the summaries are of; all of one."""
    return METRICS.get(summaries[0].metric if summaries else "accuracy").heading


def to_markdown(summaries: Iterable[Summary]) -> str:
    """Return a score by target as a Markdown table, a method a line, best in bold."""
    summaries = list(summaries)
    rows = rows_by_method(summaries)
    targets = [markdown_text(target_label(target)) for target in columns_of(rows)]
    lines = [
        [_heading(summaries), *targets],
        ["---", *("---:" for _ in targets)],
        *_lines(rows, markdown_text, lambda cell: f"**{cell}**"),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _lines(
    rows: Sequence[TableRow], text: Callable[[str], str], bold: Callable[[str], str]
) -> list[list[str]]:
    """Return each row's name and cells, escaped by ``text``, the best in bold.

    The last line is the effective number of test samples, if that is known.
    """
    columns = columns_of(rows)
    best = {column: best_in(rows, column) for column in columns}
    lines = []
    for row in rows:
        cells = [text(str(row.cells.get(column, NOTHING))) for column in columns]
        marked = [
            bold(cell) if row.name in best[column] else cell
            for column, cell in zip(columns, cells, strict=True)
        ]
        lines.append([text(row.name), *marked])
    if sizes := sizes_of(rows):
        lines.append(["n", *map(sizes.__getitem__, columns)])
    return lines


def markdown_text(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is, on one line."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escaped)


def to_latex(summaries: Iterable[Summary], *, caption: str = "") -> str:
    """Return the same as a LaTeX table with booktabs rules."""
    summaries = list(summaries)
    rows = rows_by_method(summaries)
    head = [_heading(summaries), *map(target_label, columns_of(rows))]
    return latex_table(
        [*map(latex_text, head)],
        _lines(rows, latex_text, bold),
        caption=latex_text(caption),
    )


_CSV_STATISTICS = ("raw_mean", "raw_sd", "compensated_mean", "compensated_sd")
_CSV_SIZES = ("num_samples", "num_effective", "sampling")
_CSV_SPREADS = (
    "raw_error",
    "compensated_error",
    "raw_subset_sd",
    "compensated_subset_sd",
)


def write_csv(path: Path, summaries: Iterable[Summary]) -> None:
    """Write one line for each method and target, raw and compensated side by side.

    A method is called as its row X is in the other tables; the row "PC X" is the
    compensated columns of X. The first columns are accuracy, in percent with two
    decimals. Summaries of other scores add four columns each, like ``raw_ece_mean``.
    Then come the standard errors of the accuracies over test samples, their standard
    deviations over test sets with the target's counts, the number of test samples
    behind a line, their effective number, and how they were drawn. A value that is not
    known (no compensated result) is left empty.
    """
    table: dict[tuple[str, str], dict[str, Summary]] = {}
    for summary in summaries:
        found = table.setdefault((summary.method, summary.target), {})
        found[summary.metric] = summary
    metrics = dict.fromkeys(metric for row in table.values() for metric in row)
    columns = [(metric, name) for metric in metrics for name in _CSV_STATISTICS]
    with (
        atomic_write(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        names = [_csv_column(metric, name) for metric, name in columns]
        writer.writerow(["method", "target", *names, *_CSV_SPREADS, *_CSV_SIZES])
        for key, row in table.items():
            values = (_csv_value(row[metric], name) for metric, name in columns)
            size = _csv_size(next(iter(row.values())))
            spreads = _csv_spreads(row.get("accuracy"))
            writer.writerow([*map(csv_cell, key), *values, *spreads, *size])


def _csv_spreads(summary: Summary | None) -> list[str]:
    values = [getattr(summary, name, math.nan) for name in _CSV_SPREADS]
    return ["" if math.isnan(value) else f"{100 * value:.2f}" for value in values]


def _csv_size(summary: Summary) -> tuple[str, str, str]:
    if not summary.num_samples:
        return "", "", ""
    effective = effective_text(summary.num_effective)
    return str(summary.num_samples), effective, summary.sampling


def _csv_column(metric: str, name: str) -> str:
    """Return "raw_mean" for accuracy, "raw_ece_mean" for another score."""
    if metric == "accuracy":
        return name
    kind, statistic = name.split("_")
    return f"{kind}_{metric}_{statistic}"


def _csv_value(summary: Summary, name: str) -> str:
    value, metric = getattr(summary, name), METRICS.get(summary.metric)
    if math.isnan(value):
        return ""
    return f"{metric.scaled(value):.{2 if metric.is_percent else 6}f}"
