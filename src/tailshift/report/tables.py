"""Tables of a score by target: for the terminal, Markdown, LaTeX and as CSV."""

import csv
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.evaluation.records import AS_IS, Record
from tailshift.evaluation.summary import Summary
from tailshift.metrics.table import METRICS, NOTHING
from tailshift.report.latex import bold, latex_table, latex_text
from tailshift.storage import atomic_write
from tailshift.targets import is_shift

__all__ = [
    "METRICS",
    "NOTHING",
    "Cell",
    "Row",
    "best_in",
    "columns_of",
    "inferences",
    "row_name",
    "rows_by_method",
    "rows_by_metric",
]


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over runs, as in the records; NaN for none."""

    mean: float
    sd: float
    num_runs: int
    """Runs, or random subsets of a single one, that the deviation is of."""
    metric: str = "accuracy"

    @property
    def mean_text(self) -> str:
        """The mean as it is printed: an accuracy in percent with one decimal."""
        return METRICS[self.metric].text(self.mean)

    @property
    def sd_text(self) -> str:
        """The deviation likewise; empty for a single run, which has none."""
        if math.isnan(self.mean) or self.num_runs < 2:
            return ""
        return f"± {METRICS[self.metric].text(self.sd)}"

    def __str__(self) -> str:
        return f"{self.mean_text} {self.sd_text}".rstrip()


@dataclass(frozen=True)
class Row:
    """One method, raw or compensated: its cell for each column of a table."""

    name: str
    method: str
    is_compensated: bool
    cells: Mapping[str, Cell]


def rows_by_method(summaries: Iterable[Summary]) -> list[Row]:
    """Return one row for each method and way of inference, a cell for each target.

    The compensated results of a method X are called "PC X". LADE's inference is the
    compensation (Eq. 17), so LADE has that row only.

    Example:
        >>> softmax = Summary("Softmax", "uniform", 0.71, 0.01, 0.80, 0.02, 3)
        >>> lade = Summary("LADE", "uniform", 0.81, 0.01, 0.82, 0.02, 3)
        >>> for row in rows_by_method([softmax, lade]):
        ...     print(f"{row.name}: {row.cells['uniform']}")
        Softmax: 71.0 ± 1.0
        PC Softmax: 80.0 ± 2.0
        LADE: 82.0 ± 2.0
    """
    by_method: dict[str, dict[str, Summary]] = {}
    for summary in summaries:
        by_method.setdefault(summary.method, {})[summary.target] = summary
    rows = []
    for method, of_target in by_method.items():
        known = any(not math.isnan(s.compensated_mean) for s in of_target.values())
        for is_compensated in inferences(method, known):
            cells = {t: _cell(s, is_compensated) for t, s in of_target.items()}
            rows.append(_row(method, is_compensated, cells))
    return rows


def rows_by_metric(
    records: Mapping[str, Sequence[Sequence[Record]]], target: str
) -> list[Row]:
    """Return the rows of :func:`rows_by_method` with a cell for each metric.

    Args:
        records: Display name of the method to one list of records for each run.
        target: The target that the metrics belong to.
    """
    rows = []
    for method, runs in records.items():
        chosen = [record for run in runs for record in run if record.target == target]
        known = any(record.compensated for record in chosen)
        for is_compensated in inferences(method, known):
            same = [r for r in chosen if r.compensated == is_compensated]
            cells = {
                metric.column: _mean_and_sd([getattr(record, name) for record in same])
                for name, metric in METRICS.items()
                if metric.is_percent
            }
            rows.append(_row(method, is_compensated, cells))
    return rows


def inferences(method: str, has_compensated: bool) -> tuple[bool, ...]:
    """Return which of raw (False) and compensated (True) get a row of their own."""
    if not has_compensated:
        return (False,)
    return (True,) if method == "LADE" else (False, True)


def row_name(method: str, is_compensated: bool) -> str:
    """Return "PC X" for the compensated results of X; LADE keeps its name.

    Example:
        >>> row_name("Softmax", True), row_name("LADE", True)
        ('PC Softmax', 'LADE')
    """
    return f"PC {method}" if is_compensated and method != "LADE" else method


def _row(method: str, is_compensated: bool, cells: Mapping[str, Cell]) -> Row:
    return Row(row_name(method, is_compensated), method, is_compensated, cells)


def _cell(summary: Summary, is_compensated: bool) -> Cell:
    if is_compensated:
        mean, sd = summary.compensated_mean, summary.compensated_sd
    else:
        mean, sd = summary.raw_mean, summary.raw_sd
    return Cell(mean, sd, summary.num_values, summary.metric)


def _mean_and_sd(values: Sequence[float]) -> Cell:
    if not values:
        return Cell(math.nan, math.nan, 0)
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Cell(float(np.mean(values)), sd, len(values))


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the rows' columns in the order of their first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row.cells))


def best_in(rows: Sequence[Row], column: str) -> set[str]:
    """Return the names of the rows with the best mean as printed, ties included.

    The best is the lowest for calibration errors, the highest for everything else. A
    single row has nobody to be better than: then the set is empty.
    """
    cells = {row.name: row.cells[column] for row in rows if column in row.cells}
    cells = {name: cell for name, cell in cells.items() if not math.isnan(cell.mean)}
    if len(rows) < 2 or not cells:
        return set()
    measure = METRICS[next(iter(cells.values())).metric]
    choose = max if measure.is_high_better else min
    best = choose(cells.values(), key=lambda cell: cell.mean).mean_text
    return {name for name, cell in cells.items() if cell.mean_text == best}


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
    return METRICS[summaries[0].metric if summaries else "accuracy"].heading


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
    value, measure = getattr(summary, name), METRICS[summary.metric]
    if math.isnan(value):
        return ""
    return f"{measure.scaled(value):.{2 if measure.is_percent else 6}f}"
