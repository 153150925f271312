"""The report: one HTML file with tables and figures that opens without a network."""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from tailshift.deprecation import renamed_arguments
from tailshift.evaluation.summary import Summary
from tailshift.files import atomic_write, check_new
from tailshift.metrics.table import METRICS, NOTHING
from tailshift.priors import counts_from_labels
from tailshift.report import runs as report_runs
from tailshift.report import tables
from tailshift.report.curves import probability_curves
from tailshift.report.page import charts
from tailshift.report.page.interactive import EXPLORER_SCRIPTS, explorer
from tailshift.report.page.render import render_page
from tailshift.report.rows import (
    TableRow,
    best_in,
    columns_of,
    row_keys,
    rows_by_method,
    rows_by_metric,
    size_note,
    size_text,
    sizes_of,
    split_target,
    target_label,
)
from tailshift.report.series import class_order
from tailshift.report.style import method_colours
from tailshift.runs.run import Run

_SIZE_LIMIT = 20_000_000 - 50_000  # bytes of a page, less the explorer's own
_SCRIPTS = ("charts.js", *EXPLORER_SCRIPTS)


@renamed_arguments(trained_prior="logit_prior")
def report(
    runs: report_runs.NamedRun | Iterable[report_runs.NamedRun],
    output: str | Path,
    *,
    title: str = "tailshift report",
    notes: Sequence[str] = (),
    logits: Iterable[str | Path] = (),
    logit_prior: report_runs.StatedPrior | None = None,
    force: bool = False,
    announce: Callable[[str], None] = warnings.warn,
) -> Path:
    """Write ``report.html`` and ``table.csv`` into a folder; return the page's path.

    Args:
        runs: Runs, run directories or files of logits, each a path or ``"NAME=PATH"``;
            a single one needs no list.
        output: Folder for both files, made if it is missing.
        title: Heading of the page.
        notes: Lines for the foot of the page: data, hardware, commit, command.
        logits: Deprecated; give the files of logits in ``runs``.
        logit_prior: Prior that logits carry, for files that do not say: ``"source"``
            or ``"uniform"``.
        force: Replace files that exist.
        announce: Called with a sentence about each run that is not finished, about
            logits whose prior is not known, and about classes without test samples.

    Example:
        >>> from tempfile import mkdtemp
        >>> import torch
        >>> from tailshift import Predictions
        >>> folder = Path(mkdtemp())
        >>> predictions = Predictions(
        ...     torch.eye(2), torch.arange(2), logit_prior=[0.9, 0.1]
        ... )
        >>> predictions.save(folder / "mine.safetensors")
        >>> page = report(folder / "mine.safetensors", folder / "report")
        >>> sorted(path.name for path in page.parent.iterdir())
        ['report.html', 'table.csv']
    """
    page, table = Path(output) / "report.html", Path(output) / "table.csv"
    for path in (page, table):
        check_new(path, force)
    if files := [str(file) for file in logits]:
        text = "`logits` is deprecated: give the files in `runs`."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        if isinstance(runs, Run | report_runs.ReportRun | str | os.PathLike):
            runs = [runs]
        runs = [*runs, *files]
    found = report_runs.gather_runs(runs, logit_prior=logit_prior, announce=announce)
    write_report(page, found, title=title, notes=notes, overwrite=force)
    tables.write_csv(
        table, report_runs.summarise_runs(found, report_runs.report_targets(found))
    )
    return page


def write_report(
    path: Path,
    runs: Sequence[report_runs.ReportRun],
    *,
    title: str,
    notes: Sequence[str] = (),
    overwrite: bool = False,
) -> None:
    """Write the report of ``runs`` as one self-contained HTML file.

    The same runs give the same file, byte for byte. Titles, names and notes are shown
    as text, whatever they contain.

    Args:
        path: The file to write, whole or not at all; its folder is made if missing.
        runs: Runs on the same classes. Those of one method are averaged over seeds.
        title: The page's heading.
        notes: Lines for the foot of the page: data, hardware, commit, command.
        overwrite: Replace a file that exists.
    """
    path = Path(path)
    _check_path(path, overwrite)
    report_runs.check_runs(runs)
    page = _render(runs, title, notes)
    with atomic_write(path, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


def _check_path(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise IsADirectoryError(
            f"`path` must be a file, but {path} is a folder. "
            "Add a name such as report.html."
        )
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"`path` must be new, but {path} exists. "
            "Name another file or pass overwrite=True."
        )


def _render(
    runs: Sequence[report_runs.ReportRun], title: str, notes: Sequence[str]
) -> str:
    values = _values(runs) | {"title": title, "notes": notes}

    def render(explorer: dict[str, Any]) -> str:
        values["explorer"] = explorer
        return render_page("report.html", scripts=_SCRIPTS, **values).text

    room = _SIZE_LIMIT - len(render({"data": None, "notes": ()}).encode())
    return render(explorer(runs, room=room))


def _values(runs: Sequence[report_runs.ReportRun]) -> dict[str, Any]:
    """Return what the page shows, but for the part that moves the target."""
    unit = report_runs.unit_of(runs)
    shares = [name for name, metric in METRICS.items() if metric.is_percent]
    summaries = report_runs.summarise_runs(
        runs, report_runs.report_targets(runs), metrics=shares
    )
    accuracies = [summary for summary in summaries if summary.metric == "accuracy"]
    by_target = _by_target(accuracies, unit)
    rows = by_target["rows"]
    several = any(cell.num_runs > 1 for row in rows for cell in row.cells.values())
    return {
        "unit": unit,
        "lead": _lead(accuracies),
        "facts": _facts(runs, unit),
        "by_target": by_target,
        "by_metric": _by_metric(summaries, unit),
        "spread": "mean ± standard deviation over runs" if several else "a single run",
        "colours": method_colours(row_keys(rows)),
        "by_method": report_runs.by_method(runs),
        "carried": list(filter(None, map(report_runs.carried_sentence, runs))),
        "samplings": {summary.sampling for summary in accuracies},
        "nothing": NOTHING,
        "size_text": size_text,
        "split_target": split_target,
        "target_label": target_label,
        "version": metadata.version("tailshift"),
        "target_shift": charts.target_shift_chart(accuracies)
        if len(by_target["columns"]) > 1
        else None,
        **_by_class(runs, unit),
    }


def _lead(accuracies: Sequence[Summary]) -> list[Summary]:
    """Return the accuracies to begin with: of the first method with a known prior."""
    known = [s for s in accuracies if not math.isnan(s.compensated_mean)]
    return [
        summary
        for summary in known
        if summary.method == known[0].method
        and summary.target in ("uniform", "backward:50")
    ]


def _facts(
    runs: Sequence[report_runs.ReportRun], unit: str
) -> list[tuple[str, str, str]]:
    first = runs[0].predictions
    tested = counts_from_labels(first.labels, first.num_classes)
    counts = {f"Training {unit}": first.source_counts, f"Test {unit}": tested}
    num_methods = len({run.method for run in runs})
    methods = "1 method" if num_methods == 1 else f"{num_methods} methods"
    return [
        ("Classes", f"{first.num_classes:,}", ""),
        *(
            (term, f"{int(n.sum()):,}", _spread(n))
            for term, n in counts.items()
            if n is not None
        ),
        ("Runs", str(len(runs)), methods),
    ]


def _spread(counts: Tensor) -> str:
    largest, smallest = int(counts.max()), int(counts.min())
    if largest == smallest:
        return f"{largest:,} per class"
    return f"{largest:,} to {smallest:,} per class"


def _table(rows: Sequence[TableRow]) -> dict[str, Any]:
    columns = columns_of(rows)
    best = {column: best_in(rows, column) for column in columns}
    return {"rows": rows, "columns": columns, "best": best}


def _by_target(accuracies: Sequence[Summary], unit: str) -> dict[str, Any]:
    rows = rows_by_method(accuracies)
    sizes = {"sizes": sizes_of(rows)}
    return _table(rows) | sizes | {"size_note": size_note(accuracies, unit)}


def _by_metric(summaries: Sequence[Summary], unit: str) -> dict[str, Any]:
    """Return all metrics on the uniform target, or on the only one there is."""
    targets = [summary.target for summary in summaries]
    target = "uniform" if "uniform" in targets else targets[0]
    return _table(rows_by_metric(summaries, target)) | {
        "target": target_label(target),
        "size": size_text(summaries[targets.index(target)], unit),
    }


def _by_class(runs: Sequence[report_runs.ReportRun], unit: str) -> dict[str, Any]:
    """Return the figures of classes by rank, and the table with their numbers."""
    first = runs[0].predictions
    order = class_order(first)
    names = [first.class_names[c] for c in order.tolist()]
    counts = {f"Test {unit}": counts_from_labels(first.labels, first.num_classes)}
    if first.source_counts is not None:
        counts = {f"Training {unit}": first.source_counts} | counts
    curves = probability_curves(runs)
    columns = [[f"{n:,}" for n in found[order].tolist()] for found in counts.values()]
    columns += [[f"{100 * p:.2f}" for p in curve.mean.tolist()] for curve in curves]
    return {
        "average_probability": charts.average_probability_chart(
            curves, names, first_column=1 + len(counts)
        ),
        "class_counts": None
        if first.source_counts is None
        else charts.class_counts_chart(
            first.source_counts[order].tolist(), names, unit
        ),
        "by_class": {
            "caption": f"{unit.capitalize()}, and average probability in % by method",
            "columns": [*counts, *(curve.name for curve in curves)],
            "rows": list(zip(names, zip(*columns, strict=True), strict=True)),
        },
    }
