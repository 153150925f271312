"""Rows of a table of scores: one per method and way of inference."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailshift.evaluation.records import AS_IS
from tailshift.evaluation.sampling import USES_ALL_SAMPLES
from tailshift.evaluation.summary import Summary
from tailshift.metrics.table import METRICS
from tailshift.report.runs import row_names
from tailshift.target_names import is_shift


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over runs, as in the records; NaN for none."""

    mean: float
    sd: float
    num_runs: int
    """Runs, or random subsets of a single one, that the deviation is of."""
    metric: str = "accuracy"
    num_effective: int = 0
    """Effective number of test samples behind it; 0 if not known."""

    @property
    def mean_text(self) -> str:
        """The mean as it is printed: an accuracy in percent with one decimal."""
        return METRICS.get(self.metric).text(self.mean)

    @property
    def sd_text(self) -> str:
        """The deviation likewise; empty for a single run, which has none."""
        if math.isnan(self.mean) or self.num_runs < 2:
            return ""
        return f"± {METRICS.get(self.metric).text(self.sd)}"

    def __str__(self) -> str:
        return f"{self.mean_text} {self.sd_text}".rstrip()


@dataclass(frozen=True)
class TableRow:
    """One method, raw or compensated: its cell for each column of a table."""

    name: str
    method: str
    is_compensated: bool
    cells: Mapping[str, Cell]
    key: str = ""
    """The method's registered name, which its colour goes by."""


def rows_by_method(summaries: Iterable[Summary]) -> list[TableRow]:
    """Return one row for each method and way of inference, a cell for each target.

    What the rows are called is up to :func:`~tailshift.report.runs.row_names`.

    Example:
        >>> softmax = Summary("Softmax", "uniform", 0.71, 0.01, 0.80, 0.02, 3)
        >>> for row in rows_by_method([softmax]):
        ...     print(f"{row.name}: {row.cells['uniform']}")
        Softmax: 71.0 ± 1.0
        PC Softmax: 80.0 ± 2.0
    """
    return _rows(summaries, lambda summary: summary.target)


def rows_by_metric(summaries: Iterable[Summary], target: str) -> list[TableRow]:
    """Return the same rows with a cell for each metric that the summaries are of.

    Args:
        summaries: Scores of several metrics.
        target: The target that the metrics belong to.
    """
    chosen = [summary for summary in summaries if summary.target == target]
    return _rows(chosen, lambda summary: METRICS.get(summary.metric).column)


def _rows(
    summaries: Iterable[Summary], column: Callable[[Summary], str]
) -> list[TableRow]:
    by_method: dict[str, list[Summary]] = {}
    for summary in summaries:
        by_method.setdefault(summary.method, []).append(summary)
    rows = []
    for method, of_method in by_method.items():
        known = any(not math.isnan(s.compensated_mean) for s in of_method)
        compensates, key = of_method[0].compensates, of_method[0].key
        names = row_names(method, compensates=compensates, has_compensated=known)
        for is_compensated, name in names.items():
            cells = {column(s): _cell(s, is_compensated) for s in of_method}
            rows.append(TableRow(name, method, is_compensated, cells, key))
    return rows


def _cell(summary: Summary, is_compensated: bool) -> Cell:
    # The test set as it is has no known prior to compensate to: what it scores is raw,
    # also of a method whose only row is the compensated one.
    is_known = not math.isnan(summary.compensated_mean)
    if is_compensated and (is_known or not summary.compensates):
        mean, sd = summary.compensated_mean, summary.compensated_sd
    else:
        mean, sd = summary.raw_mean, summary.raw_sd
    size = round(summary.num_effective)
    return Cell(mean, sd, summary.num_values, summary.metric, size)


def row_keys(rows: Iterable[TableRow]) -> dict[str, str]:
    """Return the key of each method, which its colour goes by."""
    return {row.method: row.key for row in rows}


def columns_of(rows: Iterable[TableRow]) -> list[str]:
    """Return the rows' columns in the order of their first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row.cells))


def best_in(rows: Sequence[TableRow], column: str) -> set[str]:
    """Return the names of the rows with the best mean as printed, ties included.

    The best is the lowest for calibration errors, the highest for everything else. A
    single row has nobody to be better than: then the set is empty.
    """
    cells = {row.name: row.cells[column] for row in rows if column in row.cells}
    cells = {name: cell for name, cell in cells.items() if not math.isnan(cell.mean)}
    if len(rows) < 2 or not cells:
        return set()
    metric = METRICS.get(next(iter(cells.values())).metric)
    choose = max if metric.is_high_better else min
    best = choose(cells.values(), key=lambda cell: cell.mean).mean_text
    return {name for name, cell in cells.items() if cell.mean_text == best}


def sizes_of(rows: Sequence[TableRow]) -> dict[str, str]:
    """Return the effective number of test samples of each column; none if not known.

    If it differs from row to row, it is the fewest.
    """
    columns: dict[str, list[int]] = {}
    for row in rows:
        for column, cell in row.cells.items():
            columns.setdefault(column, []).append(cell.num_effective)
    known = any(map(any, columns.values()))
    return {c: f"{min(sizes):,}" for c, sizes in columns.items()} if known else {}


def size_note(summaries: Sequence[Summary], unit: str = "samples") -> str:
    """Return what the sizes beside the scores are: of drawn or of weighted samples.

    Example:
        >>> from dataclasses import replace
        >>> drawn = Summary("A", "uniform", 0.5, 0, 0.6, 0, 1, num_samples=9)
        >>> size_note([drawn])
        'n: test samples'
        >>> size_note([replace(drawn, sampling="reweighted")], unit="images")
        'n: effective test images, of 9 weighted to the target'
    """
    weighted = [s.num_samples for s in summaries if s.sampling in USES_ALL_SAMPLES]
    if not weighted:
        return f"n: test {unit}"
    return f"n: effective test {unit}, of {max(weighted):,} weighted to the target"


def spread_note(summaries: Sequence[Summary]) -> str:
    """Return how far accuracies can be off, in points; empty if that is not known.

    Example:
        >>> from dataclasses import replace
        >>> summary = Summary("A", "forward:50", 0.5, 0, 0.6, 0, 1)
        >>> spread_note([replace(summary, raw_error=0.009, compensated_error=0.007)])
        'standard error over test samples: 0.7 to 0.9'
    """
    parts = []
    for name, kind in (
        ("standard error over test samples", "error"),
        ("sd over test sets with these counts", "subset_sd"),
    ):
        values = [
            value
            for summary in summaries
            for value in (
                getattr(summary, f"raw_{kind}"),
                getattr(summary, f"compensated_{kind}"),
            )
            if not math.isnan(value)
        ]
        if values:
            low, high = (f"{100 * end:.1f}" for end in (min(values), max(values)))
            parts.append(f"{name}: {low if low == high else f'{low} to {high}'}")
    return "; ".join(parts)


def size_text(summary: Summary, unit: str = "samples") -> str:
    """Return how many test samples a score is of; empty if that is not known.

    Example:
        >>> from dataclasses import replace
        >>> drawn = Summary("A", "uniform", 0.5, 0, 0.6, 0, 1, num_samples=90)
        >>> size_text(drawn, unit="images")
        '90 images'
        >>> size_text(replace(drawn, sampling="reweighted", num_effective=41.6))
        '90 weighted samples, effectively 42'
    """
    if not summary.num_samples:
        return ""
    is_plain = round(summary.num_effective) == summary.num_samples
    if summary.sampling not in USES_ALL_SAMPLES or is_plain:
        return f"{summary.num_samples:,} {unit}"
    return (
        f"{summary.num_samples:,} weighted {unit}, "
        f"effectively {round(summary.num_effective):,}"
    )


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


def short_target(target: str) -> str:
    """Return a target's name over two lines, for narrow columns."""
    kind, ratio = split_target(target)
    return f"{kind[:4]}\n{ratio}".rstrip()
