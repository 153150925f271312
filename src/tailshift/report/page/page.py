"""The report: one HTML file with tables and figures that opens without a network."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from string import Template

import plotly
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from torch import Tensor

from tailshift.evaluation.records import Record, evaluate
from tailshift.evaluation.summary import Summary, summarise
from tailshift.predictions import Predictions
from tailshift.priors import counts_from_labels
from tailshift.report.page.figures import (
    average_probability_figure,
    class_counts_figure,
    target_shift_figure,
)
from tailshift.report.page.html_tables import (
    class_table,
    line_key,
    metric_table,
    target_table,
)
from tailshift.report.page.interactive import interactive_script, interactive_section
from tailshift.report.runs import ReportRun
from tailshift.report.style import escape_json, plain
from tailshift.report.tables import columns_of, rows_by_method, target_label
from tailshift.storage import atomic_write
from tailshift.targets import PAPER_TARGETS

FIGURE_TEXTS = {
    "target-shift": (
        "Accuracy against target shift",
        "Dashed: as trained. Solid: compensated. Numbers below the axis are the "
        "target's imbalance ratio: forward targets fall off as the training set does, "
        "backward ones the other way round. Bars are ± one standard deviation over "
        "runs.",
    ),
    "average-probability": (
        "Average probability of each class",
        "Mean over a balanced test set; dashed as trained, solid compensated to the "
        "uniform prior. What slopes with the training counts still carries their "
        "prior; dotted is 1/C.",
    ),
    "class-counts": (
        "Training images of each class",
        "What the classifiers learnt from, on a logarithmic scale.",
    ),
}


def lead(summaries: Sequence[Summary]) -> str:
    """Return what is seen, in numbers, for the first method with a known prior."""
    known = [s for s in summaries if not math.isnan(s.compensated_mean)]
    if not known:
        return (
            "Accuracy of each classifier as it was trained. It is not known which "
            "prior the logits carry, so nothing is compensated."
        )
    seen = [
        f"{_percent(s.raw_mean)} as trained and {_percent(s.compensated_mean)} "
        f"compensated on <em>{plain(target_label(s.target))}</em>"
        for s in known
        if s.method == known[0].method and s.target in ("uniform", "backward:50")
    ]
    return (
        f"{plain(known[0].method)}, trained once, reaches {', and '.join(seen)}. "
        "Compensated: the logits are moved from the prior they carry to that of the "
        "target, without any training."
    )


def _percent(fraction: float) -> str:
    return f"<strong>{100 * fraction:.1f}&nbsp;%</strong>"


def facts(runs: Sequence[ReportRun]) -> str:
    """Return the sizes of what was trained and tested, as a description list."""
    first = runs[0].predictions
    items = [("Classes", f"{first.num_classes:,}", "")]
    if first.source_counts is not None:
        n = first.source_counts
        items.append(("Training images", f"{int(n.sum()):,}", _spread(n)))
    tested = counts_from_labels(first.labels, first.num_classes)
    items.append(("Test images", f"{len(first.labels):,}", _spread(tested)))
    num_methods = len({run.method for run in runs})
    methods = "1 method" if num_methods == 1 else f"{num_methods} methods"
    items.append(("Runs", str(len(runs)), methods))
    return "\n".join(
        f"<div><dt>{term}</dt><dd>{value} <small>{detail}</small></dd></div>"
        for term, value, detail in items
    )


def _spread(counts: Tensor) -> str:
    largest, smallest = int(counts.max()), int(counts.min())
    if largest == smallest:
        return f"{largest:,} a class"
    return f"{largest:,} to {smallest:,} a class"


def sections(
    runs: Sequence[ReportRun],
    records: Mapping[str, Sequence[Sequence[Record]]],
    summaries: Sequence[Summary],
) -> str:
    """Return the tables and figures, most telling first."""
    first, rows = runs[0].predictions, rows_by_method(summaries)
    probabilities = average_probability_figure(runs)
    parts = [target_table(rows), metric_table(records, summaries)]
    if len(columns_of(rows)) > 1:
        figure = target_shift_figure(summaries)
        parts.insert(0, _figure_section("target-shift", figure))
    parts.append(_figure_section("average-probability", probabilities))
    if first.source_counts is not None:
        figure = class_counts_figure(first)
        parts.append(_figure_section("class-counts", figure))
    parts.append(f"<section>{class_table(first, probabilities)}</section>")
    return "\n".join(parts)


def _figure_section(name: str, figure: go.Figure) -> str:
    heading, note = FIGURE_TEXTS[name]
    legend = _legend(name, figure)
    figure.update_layout(showlegend=False)  # the page has its own, made of buttons
    return f"""<section aria-labelledby="{name}-heading">
<h2 id="{name}-heading">{heading}</h2>
<p class="note">{note}</p>
{legend}
<div class="plot" id="{name}" role="img" aria-label="{heading}"></div>
<noscript>The figure needs JavaScript; the tables hold its numbers.</noscript>
<script type="application/json" id="{name}-data">{script_json(figure)}</script>
</section>"""


def script_json(figure: go.Figure) -> str:
    """Return a figure as JSON that cannot end the script element it stands in."""
    return escape_json(json.dumps(json.loads(figure.to_json()), separators=(",", ":")))


def _legend(name: str, figure: go.Figure) -> str:
    buttons = [
        f'<button type="button" aria-pressed="true" data-plot="{name}" '
        f'data-trace="{index}">{line_key(trace.line.color, trace.line.dash)}'
        f"{trace.name}</button>"
        for index, trace in enumerate(figure.data)
        if trace.showlegend is not False
    ]
    return f'<div class="legend">{"".join(buttons)}</div>' if buttons else ""


def provenance(runs: Sequence[ReportRun], notes: Sequence[str]) -> str:
    """Return where the numbers come from, one list item a line."""
    lines = [plain(note) for note in notes]
    by_method: dict[str, list[ReportRun]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run)
    lines += [_origin(method, of_method) for method, of_method in by_method.items()]
    lines += [
        "Compensated means f − log p_trained + log p_t for the target's prior p_t; "
        "PC X is X compensated, and LADE's inference is compensated by definition.",
        "Shifted test sets take the first images of each class in file order.",
        f"tailshift {_version()}, Plotly {plotly.__version__}",
    ]
    return "\n".join(f"<li>{line}</li>" for line in lines)


def _origin(method: str, runs: Sequence[ReportRun]) -> str:
    word = "seed" if len(runs) == 1 else "seeds"
    seeds = ", ".join(str(run.seed) for run in runs)
    names = ", ".join(f"<code>{plain(run.name)}</code>" for run in runs if run.name)
    return f"{plain(method)}: {word} {seeds}" + (f" ({names})" if names else "")


def _version() -> str:
    try:
        return metadata.version("tailshift")
    except metadata.PackageNotFoundError:
        return "(not installed)"


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
    return (resources.files("tailshift.report.page") / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Return a content security policy: these scripts run, and nothing is fetched."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:"
    )
