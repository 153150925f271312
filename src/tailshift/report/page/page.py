"""The report: one HTML file with tables and figures that opens without a network."""

import base64
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata, resources
from pathlib import Path
from string import Template

import plotly
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from torch import Tensor

from tailshift.evaluation.summary import Summary
from tailshift.metrics.table import METRICS
from tailshift.priors import counts_from_labels
from tailshift.report import runs as report_runs
from tailshift.report import tables
from tailshift.report.page import figures, html_tables
from tailshift.report.page.interactive import interactive_script, interactive_section
from tailshift.report.style import escape_json, plain
from tailshift.storage import atomic_write, check_new

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
        "Training $unit of each class",
        "What the classifiers learnt from, on a logarithmic scale.",
    ),
}


def lead(summaries: Sequence[Summary], unit: str = "samples") -> str:
    """Return what is seen, in numbers, for the first method with a known prior."""
    known = [s for s in summaries if not math.isnan(s.compensated_mean)]
    if not known:
        return (
            "Accuracy of each classifier as it was trained. It is not known which "
            "prior the logits carry, so nothing is compensated."
        )
    seen = [
        f"{_percent(s.raw_mean)} as trained and {_percent(s.compensated_mean)} "
        f"compensated on <em>{plain(tables.target_label(s.target))}</em>"
        f"{_size(s, unit)}"
        for s in known
        if s.method == known[0].method and s.target in ("uniform", "backward:50")
    ]
    return (
        f"{plain(known[0].method)}, trained once, reaches {', and '.join(seen)}. "
        "Compensated: the logits are moved from the prior they carry to that of the "
        "target, without any training."
    )


def _size(summary: Summary, unit: str) -> str:
    text = tables.size_text(summary, unit)
    return f" ({text})" if text else ""


def _percent(fraction: float) -> str:
    return f"<strong>{100 * fraction:.1f}&nbsp;%</strong>"


def facts(runs: Sequence[report_runs.ReportRun]) -> str:
    """Return the sizes of what was trained and tested, as a description list."""
    first, unit = runs[0].predictions, report_runs.unit_of(runs)
    items = [("Classes", f"{first.num_classes:,}", "")]
    if first.source_counts is not None:
        n = first.source_counts
        items.append((f"Training {unit}", f"{int(n.sum()):,}", _spread(n)))
    tested = counts_from_labels(first.labels, first.num_classes)
    items.append((f"Test {unit}", f"{len(first.labels):,}", _spread(tested)))
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
    runs: Sequence[report_runs.ReportRun],
    accuracies: Sequence[Summary],
    summaries: Sequence[Summary],
) -> str:
    """Return the tables and figures, most telling first."""
    first, unit = runs[0].predictions, report_runs.unit_of(runs)
    probabilities = figures.average_probability_figure(runs)
    parts = [
        html_tables.target_table(accuracies, unit),
        html_tables.metric_table(summaries, unit),
    ]
    if len({summary.target for summary in accuracies}) > 1:
        figure = figures.target_shift_figure(accuracies)
        parts.insert(0, _figure_section("target-shift", figure))
    parts.append(_figure_section("average-probability", probabilities))
    if first.source_counts is not None:
        figure = figures.class_counts_figure(first, unit)
        parts.append(_figure_section("class-counts", figure, unit))
    classes = html_tables.class_table(first, probabilities, unit)
    parts.append(f"<section>{classes}</section>")
    return "\n".join(parts)


def _figure_section(name: str, figure: go.Figure, unit: str = "samples") -> str:
    heading, note = FIGURE_TEXTS[name]
    heading = heading.replace("$unit", unit)
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
        f'data-trace="{index}">'
        f"{html_tables.line_key(trace.line.color, trace.line.dash)}"
        f"{trace.name}</button>"
        for index, trace in enumerate(figure.data)
        if trace.showlegend is not False
    ]
    return f'<div class="legend">{"".join(buttons)}</div>' if buttons else ""


def provenance(
    runs: Sequence[report_runs.ReportRun],
    notes: Sequence[str],
    summaries: Sequence[Summary],
) -> str:
    """Return where the numbers come from, one list item per line."""
    lines = [plain(note) for note in notes]
    lines += [_origin(*item) for item in report_runs.by_method(runs).items()]
    lines += [plain(s) for s in map(report_runs.carried_sentence, runs) if s]
    lines += [
        "Compensated means f − log p_trained + log p_t for the target's prior p_t; "
        "PC X is X compensated, and LADE's inference is compensated by definition.",
        _way(summaries, report_runs.unit_of(runs)),
        f"tailshift {_version()}, Plotly {plotly.__version__}",
    ]
    return "\n".join(f"<li>{line}</li>" for line in lines)


def _way(summaries: Sequence[Summary], unit: str) -> str:
    ways = {summary.sampling for summary in summaries}
    if "reweighted" not in ways:
        if "first" in ways and "expected" not in ways:
            return f"Shifted test sets take the first {unit} of each class."
        return (
            "Accuracy on a shifted test set is the expectation over all test sets with "
            f"the target's counts n_y. All M_y {unit} of class y count, each n_y/M_y."
        )
    return (
        f"The test set is not balanced, so no target is drawn from it: all {unit} "
        "count, each by p_t(y)/n_y. The effective number of them is (Σw)²/Σw²."
    )


def _origin(method: str, runs: Sequence[report_runs.ReportRun]) -> str:
    word = "seed" if len(runs) == 1 else "seeds"
    seeds = ", ".join(str(run.seed) for run in runs)
    names = ", ".join(f"<code>{plain(run.name)}</code>" for run in runs if run.name)
    return f"{plain(method)}: {word} {seeds}" + (f" ({names})" if names else "")


def _version() -> str:
    try:
        return metadata.version("tailshift")
    except metadata.PackageNotFoundError:
        return "(not installed)"


_SIZE_LIMIT = 20_000_000 - 50_000  # bytes of a page, less its frame


def report(
    runs: report_runs.NamedRun | Iterable[report_runs.NamedRun],
    output: str | Path,
    *,
    title: str = "tailshift report",
    notes: Sequence[str] = (),
    logits: Iterable[str | Path] = (),
    trained_prior: report_runs.StatedPrior | None = None,
    force: bool = False,
    announce: Callable[[str], None] = warnings.warn,
) -> Path:
    """Write ``report.html`` and ``table.csv`` into a folder; return the page's path.

    Args:
        runs: Runs, run directories or files of logits; a single one needs no list.
        output: Folder for both files, made if it is missing.
        title: Heading of the page.
        notes: Lines for the foot of the page: data, hardware, commit, command.
        logits: Further files of logits, each a path or ``"NAME=PATH"``.
        trained_prior: Prior that logits carry, for files that do not say: ``"source"``
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
        ...     torch.eye(2), torch.arange(2), trained_prior=[0.9, 0.1]
        ... )
        >>> predictions.save(folder / "mine.safetensors")
        >>> page = report(folder / "mine.safetensors", folder / "report")
        >>> sorted(path.name for path in page.parent.iterdir())
        ['report.html', 'table.csv']
    """
    page, table = Path(output) / "report.html", Path(output) / "table.csv"
    for path in (page, table):
        check_new(path, force)
    found = report_runs.gather_runs(
        runs, logits=logits, trained_prior=trained_prior, announce=announce
    )
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
    shares = [name for name, metric in METRICS.items() if metric.is_percent]
    summaries = report_runs.summarise_runs(
        runs, report_runs.report_targets(runs), metrics=shares
    )
    accuracies = [summary for summary in summaries if summary.metric == "accuracy"]
    scripts = {
        "plotly": get_plotlyjs(),
        "script": _part("page.js"),
        "interactive_script": interactive_script(),
    }
    parts = scripts | {
        "policy": _policy(*scripts.values()),
        "title": plain(title),
        "style": _part("page.css") + _part("interactive.css"),
        "lead": lead(accuracies, report_runs.unit_of(runs)),
        "facts": facts(runs),
        "sections": sections(runs, accuracies, summaries),
        "provenance": provenance(runs, notes, accuracies),
    }
    room = _SIZE_LIMIT - sum(len(part.encode()) for part in parts.values())
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
