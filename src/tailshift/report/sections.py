"""The parts of the report as HTML; every name that comes from outside is escaped."""

import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata

import plotly
import plotly.graph_objects as go
from torch import Tensor

from tailshift.evaluation.records import Record
from tailshift.evaluation.summary import Summary
from tailshift.priors import counts_from_labels
from tailshift.report.figures import (
    average_probability_figure,
    class_counts_figure,
    target_shift_figure,
)
from tailshift.report.html_tables import (
    class_table,
    line_key,
    metric_table,
    target_table,
)
from tailshift.report.rows import columns_of, rows_by_method
from tailshift.report.run import ReportRun
from tailshift.report.style import escape_json, plain
from tailshift.report.tables import target_label

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
