"""Rows of the report's tables: a method, raw or compensated, and its cells."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tailshift.evaluation.measures import MEASURES, NOTHING
from tailshift.evaluation.records import Record
from tailshift.evaluation.summary import Summary

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

METRICS = {
    "All": "accuracy",
    "Many": "many",
    "Medium": "medium",
    "Few": "few",
    "Top-5": "top5",
    "Macro-F1": "macro_f1",
}
"""Column of the table on one target: attribute of :class:`Record`."""


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
        return MEASURES[self.metric].text(self.mean)

    @property
    def sd_text(self) -> str:
        """The deviation likewise; empty for a single run, which has none."""
        if math.isnan(self.mean) or self.num_runs < 2:
            return ""
        return f"± {MEASURES[self.metric].text(self.sd)}"

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
                column: _mean_and_sd([getattr(record, name) for record in same])
                for column, name in METRICS.items()
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
    measure = MEASURES[next(iter(cells.values())).metric]
    choose = max if measure.is_high_better else min
    best = choose(cells.values(), key=lambda cell: cell.mean).mean_text
    return {name for name, cell in cells.items() if cell.mean_text == best}
