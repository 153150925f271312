"""The report: one HTML file with tables and figures that opens without a network."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from tailshift.evaluation.records import Record, evaluate
from tailshift.evaluation.summary import summarise
from tailshift.files import atomic_write
from tailshift.predictions import Predictions
from tailshift.priors import PAPER_TARGETS
from tailshift.report.interactive import interactive_script, interactive_section
from tailshift.report.run import ReportRun
from tailshift.report.sections import facts, lead, provenance, sections
from tailshift.report.style import plain

__all__ = ["ReportRun", "report_targets", "write_report"]

SIZE_LIMIT = 20_000_000 - 50_000  # bytes of a page, less its frame


def write_report(
    path: Path,
    runs: Sequence[ReportRun],
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
    check_runs(runs)
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


def check_runs(runs: Sequence[ReportRun]) -> None:
    """Refuse runs that cannot stand in one table: other classes, or one twice."""
    if not runs:
        raise ValueError("`runs` must hold at least one run, but is empty.")
    seen: set[tuple[str, int]] = set()
    for run in runs:
        if (run.method, run.seed) in seen:
            raise ValueError(
                f"`runs` must differ in method or seed, but {_called(run)} is there "
                "twice. Give one of them another method name."
            )
        seen.add((run.method, run.seed))
        _check_comparable(runs[0], run)


def _check_comparable(first: ReportRun, run: ReportRun) -> None:
    a, b = first.predictions, run.predictions
    if a.num_classes != b.num_classes:
        raise ValueError(
            f"`runs` must share their classes, but {_called(first)} has "
            f"{a.num_classes} and {_called(run)} has {b.num_classes}."
        )
    if a.class_names != b.class_names:
        raise ValueError(
            f"`runs` must share their class names, but those of {_called(first)} and "
            f"{_called(run)} differ."
        )
    if _counts(a) != _counts(b):
        raise ValueError(
            f"`runs` must share their training counts, but those of {_called(first)} "
            f"and {_called(run)} differ. Write a report for each data set."
        )


def _called(run: ReportRun) -> str:
    return f"{run.method} seed {run.seed}"


def _counts(predictions: Predictions) -> list[int] | None:
    counts = predictions.source_counts
    return None if counts is None else counts.tolist()


def report_targets(runs: Sequence[ReportRun]) -> Sequence[str]:
    """Return the targets that runs can be tried on: forward and backward need counts.

    Args:
        runs: Runs on the same classes.
    """
    ordered = runs[0].predictions.source_counts is not None
    return PAPER_TARGETS if ordered else ("uniform",)


def _render(runs: Sequence[ReportRun], title: str, notes: Sequence[str]) -> str:
    targets = report_targets(runs)
    records: dict[str, list[list[Record]]] = {}
    for run in runs:
        records.setdefault(run.method, []).append(evaluate(run.predictions, targets))
    summaries = summarise(records)
    scripts = {
        "plotly": get_plotlyjs(),
        "script": _part("page.js"),
        "interactive_script": interactive_script(),
    }
    parts = scripts | {
        "policy": _policy(*scripts.values()),
        "title": plain(title),
        "style": _part("page.css") + _part("interactive.css"),
        "lead": lead(summaries),
        "facts": facts(runs),
        "sections": sections(runs, records, summaries),
        "provenance": provenance(runs, notes),
    }
    room = SIZE_LIMIT - sum(len(part.encode()) for part in parts.values())
    parts["interactive"] = interactive_section(runs, room=room)
    return Template(_part("page.html")).substitute(parts)


def _part(name: str) -> str:
    return (resources.files("tailshift.report") / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Return a content security policy: these scripts run, and nothing is fetched."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:"
    )
