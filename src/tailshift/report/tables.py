"""Tables of scores: their rows, then for the terminal, Markdown, LaTeX and as CSV."""

import csv
import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.evaluation.records import AS_IS, effective_text
from tailshift.evaluation.sampling import USES_ALL_SAMPLES
from tailshift.evaluation.summary import Summary
from tailshift.metrics.table import METRICS, NOTHING
from tailshift.report.runs import row_names
from tailshift.storage import atomic_write, csv_cell, printable
from tailshift.targets import is_shift

MAX_TERMINAL_COLUMNS = 5  # so many methods side by side fit into 80 characters


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


def summary_table(summaries: Iterable[Summary]) -> Table:
    """Return a score by target as a table for the terminal, the best in bold.

    Up to five methods stand side by side, a target a line, and fit into 80 characters;
    more of them stand below each other, a target a column.
    """
    summaries = list(summaries)
    rows = rows_by_method(summaries)
    title = f"{_heading(summaries)} by target distribution"
    down = len(rows) <= MAX_TERMINAL_COLUMNS
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


def short_target(target: str) -> str:
    """Return a target's name over two lines, for narrow columns."""
    kind, ratio = split_target(target)
    return f"{kind[:4]}\n{ratio}".rstrip()


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


ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "…": r"\ldots{}",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "˒": r"\textsuperscript{,}",
    **{
        mark: rf"\textsuperscript{{{digit}}}" for digit, mark in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")
    },
}


def latex_text(text: str) -> str:
    r"""Return ``text`` so that LaTeX shows it as it is, on one line.

    Example:
        >>> print(latex_text("50 % of R&D"))
        50 \% of R\&D
    """
    return "".join(
        ESCAPES.get(character, character) for character in " ".join(text.split())
    )


def bold(text: str) -> str:
    """Return LaTeX in bold."""
    return rf"\textbf{{{text}}}"


def latex_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    num_names: int = 1,
) -> str:
    r"""Return a table environment; it needs ``\usepackage{booktabs}``.

    Args:
        head: The columns' headings, as LaTeX.
        rows: The cells of each row, as LaTeX.
        caption: As LaTeX.
        num_names: So many columns at first hold text and stand to the left.
    """
    columns = "l" * num_names + "r" * (len(head) - num_names)
    lines = [
        r"\begin{table}",
        r"  \centering",
        *([rf"  \caption{{{caption}}}"] if caption else []),
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {' & '.join(head)} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(row)} \\\\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
