"""Tables of a score by target: for the terminal, Markdown, LaTeX and as CSV."""

import csv
import html
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.evaluation.measures import MEASURES
from tailshift.evaluation.records import AS_IS
from tailshift.evaluation.shifts import is_shift
from tailshift.evaluation.summary import Summary
from tailshift.files import atomic_write
from tailshift.report.latex import bold, latex_table, latex_text
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
    "to_latex",
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
    """Return the kind of shift and what it is given; that of a file is empty.

    Example:
        >>> split_target("backward:10"), split_target("as_is")
        (('backward', '10'), ('as is', ''))
    """
    kind, _, ratio = target.partition(":")
    if is_shift(target):
        return kind.replace("_", " "), ratio.replace(":", " ")
    return ("as is" if target == AS_IS else target), ""


def summary_table(summaries: Iterable[Summary]) -> Table:
    """Return a score by target as a table for the terminal, the best in bold.

    Up to five methods stand side by side, a target a line, and fit into 80 characters;
    more of them stand below each other, a target a column.
    """
    summaries = list(summaries)
    rows, title = (
        rows_by_method(summaries),
        f"{_heading(summaries)} by target distribution",
    )
    if len(rows) <= MAX_TERMINAL_COLUMNS:
        return _targets_down(rows, title)
    return _targets_across(rows, title)


def _targets_down(rows: Sequence[Row], title: str) -> Table:
    table = _empty_table("Target", title)
    for row in rows:
        name, _, last = row.name.rpartition(" ")
        table.add_column(Text(f"{name}\n{last}".strip()), justify="right", no_wrap=True)
    for target in columns_of(rows):
        best = best_in(rows, target)
        cells = [_terminal_cell(row, target, best) for row in rows]
        table.add_row(Text(target_label(target)), *cells)
    return table


def _targets_across(rows: Sequence[Row], title: str) -> Table:
    targets = columns_of(rows)
    best = {target: best_in(rows, target) for target in targets}
    table = _empty_table("Method", title)
    for target in targets:
        table.add_column(Text(short_target(target)), justify="right")
    for row in rows:
        cells = [_terminal_cell(row, target, best[target], "\n") for target in targets]
        table.add_row(Text(row.name), *cells)
    return table


def _empty_table(corner: str, title: str) -> Table:
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(corner)
    return table


def short_target(target: str) -> str:
    """Return a target's name over two lines, for narrow columns."""
    kind, ratio = split_target(target)
    return f"{kind[:4]}\n{ratio}".rstrip()


def _terminal_cell(row: Row, column: str, best: set[str], gap: str = " ") -> Text:
    cell = row.cells.get(column, Cell(math.nan, math.nan, 0))
    style = "bold" if row.name in best else ""
    sd_text = cell.sd_text if gap == " " else cell.sd_text.replace(" ", "")
    return Text(f"{cell.mean_text}{gap}{sd_text}".rstrip(), style=style)


def _heading(summaries: Sequence[Summary]) -> str:
    """Return the score that the summaries are of; all of one."""
    return MEASURES[summaries[0].metric if summaries else "accuracy"].heading


def to_markdown(summaries: Iterable[Summary]) -> str:
    """Return a score by target as a Markdown table, a method a line, best in bold."""
    summaries = list(summaries)
    rows = rows_by_method(summaries)
    targets = columns_of(rows)
    best = {target: best_in(rows, target) for target in targets}
    lines = [
        [
            _heading(summaries),
            *(markdown_text(target_label(target)) for target in targets),
        ],
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


def to_latex(summaries: Iterable[Summary], *, caption: str = "") -> str:
    """Return the same as a LaTeX table with booktabs rules."""
    summaries = list(summaries)
    rows = rows_by_method(summaries)
    targets = columns_of(rows)
    best = {target: best_in(rows, target) for target in targets}
    lines = []
    for row in rows:
        cells = [
            latex_text(str(row.cells[t]) if t in row.cells else NOTHING)
            for t in targets
        ]
        marked = [
            bold(cell) if row.name in best[target] else cell
            for target, cell in zip(targets, cells, strict=True)
        ]
        lines.append([latex_text(row.name), *marked])
    head = [_heading(summaries), *map(target_label, targets)]
    return latex_table([*map(latex_text, head)], lines, caption=latex_text(caption))


def write_csv(path: Path, summaries: Iterable[Summary]) -> None:
    """Write one line for each method and target.

    The first columns are accuracy, in percent with two decimals. Summaries of other
    scores add four columns each, like ``raw_ece_mean``. A value that is not known (no
    compensated result) is left empty.
    """
    table: dict[tuple[str, str], dict[str, Summary]] = {}
    for summary in summaries:
        found = table.setdefault((summary.method, summary.target), {})
        found[summary.metric] = summary
    metrics = dict.fromkeys(metric for row in table.values() for metric in row)
    columns = [(metric, name) for metric in metrics for name in CSV_COLUMNS[2:]]
    with (
        atomic_write(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        names = [_csv_column(metric, name) for metric, name in columns]
        writer.writerow([*CSV_COLUMNS[:2], *names])
        for key, row in table.items():
            writer.writerow(
                [*key, *(_csv_value(row[metric], name) for metric, name in columns)]
            )


def _csv_column(metric: str, name: str) -> str:
    """Return "raw_mean" for accuracy, "raw_ece_mean" for another score."""
    if metric == "accuracy":
        return name
    kind, statistic = name.split("_")
    return f"{kind}_{metric}_{statistic}"


def _csv_value(summary: Summary, name: str) -> str:
    value, measure = getattr(summary, name), MEASURES[summary.metric]
    if math.isnan(value):
        return ""
    return f"{measure.scaled(value):.{2 if measure.is_percent else 6}f}"
