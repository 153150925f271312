"""The report's tables as HTML, in the colours of its figures."""

from collections.abc import Iterable, Mapping, Sequence

import plotly.graph_objects as go

from tailshift.evaluation.summary import Summary
from tailshift.metrics.table import NOTHING
from tailshift.predictions import Predictions
from tailshift.priors import counts_from_labels
from tailshift.report import tables
from tailshift.report.series import class_order
from tailshift.report.style import method_colours, plain


def line_key(colour: str, dash: str) -> str:
    """Return a short stroke as in the figures, to stand beside a name."""
    pattern = {"dash": ' stroke-dasharray="6 4"', "dot": ' stroke-dasharray="2 3"'}
    return (
        '<svg class="key" viewBox="0 0 26 10" aria-hidden="true"><path d="M1 5h24" '
        f'stroke="{colour}" stroke-width="3"{pattern.get(dash, "")}/></svg>'
    )


def _row_key(row: tables.TableRow, colours: Mapping[str, str]) -> str:
    return line_key(colours[row.method], "solid" if row.is_compensated else "dash")


def target_table(summaries: Sequence[Summary], unit: str = "samples") -> str:
    """Return accuracy with a target a line and a method a column, and the test sets."""
    rows = tables.rows_by_method(summaries)
    sizes = tables.sizes_of(rows)
    colours = method_colours(tables.row_keys(rows))
    head = [f"{_row_key(row, colours)}{plain(row.name)}" for row in rows]
    body = []
    for target in tables.columns_of(rows):
        best = tables.best_in(rows, target)
        cells = [_cell(row, target, best) for row in rows]
        if sizes:
            cells.append(f'<td class="size">{sizes[target]}</td>')
        kind, ratio = map(plain, tables.split_target(target))
        body.append((f'{kind} <span class="ratio">{ratio}</span>', cells))
    return table_section(
        "Accuracy by target",
        f"In %, {_spread(rows)}; the best of a line in bold. "
        f"{tables.size_note(summaries, unit) + '.' if sizes else ''}".rstrip(),
        ["Target", *head, *(["n"] if sizes else [])],
        body,
    )


def metric_table(summaries: Sequence[Summary], unit: str = "samples") -> str:
    """Return all metrics on the uniform target, or on the only one there is."""
    targets = [summary.target for summary in summaries]
    target = "uniform" if "uniform" in targets else targets[0]
    rows = tables.rows_by_metric(summaries, target)
    size = tables.size_text(summaries[targets.index(target)], unit)
    colours = method_colours(tables.row_keys(rows))
    columns = tables.columns_of(rows)
    head = [column.replace("-", "\N{NON-BREAKING HYPHEN}") for column in columns]
    best = {column: tables.best_in(rows, column) for column in columns}
    body = [
        (
            f"{_row_key(row, colours)}{plain(row.name)}",
            [_cell(row, column, best[column]) for column in columns],
        )
        for row in rows
    ]
    return table_section(
        f"All metrics, target {plain(tables.target_label(target))}",
        f"In %, {_spread(rows)}{size and f', {size}'}. "
        f"All, many (more than 100 training {unit}), "
        "medium (20 to 100) and few (fewer than 20) are accuracies over those "
        f"classes; {NOTHING} if there is no such class.",
        ["Method", *head],
        body,
    )


def _spread(rows: Sequence[tables.TableRow]) -> str:
    several = any(cell.num_runs > 1 for row in rows for cell in row.cells.values())
    return "mean ± standard deviation over runs" if several else "a single run"


def _cell(row: tables.TableRow, column: str, best: set[str]) -> str:
    cell = row.cells.get(column)
    if cell is None:
        return f"<td>{NOTHING}</td>"
    mark = ' class="best"' if row.name in best else ""
    sd = f' <span class="sd">{cell.sd_text}</span>' if cell.sd_text else ""
    return f"<td{mark}>{cell.mean_text}{sd}</td>"


def table_section(
    heading: str,
    note: str,
    head: Iterable[str],
    body: Iterable[tuple[str, Sequence[str]]],
) -> str:
    """Return a card with a heading, a note and a table that scrolls by itself."""
    return f"""<section>
<h2>{heading}</h2>
<p class="note">{note}</p>
{_scrolling_table(heading, head, body)}
</section>"""


def _scrolling_table(
    caption: str, head: Iterable[str], body: Iterable[tuple[str, Sequence[str]]]
) -> str:
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    lines = "\n".join(
        f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>' for name, cells in body
    )
    return f"""<div class="scroll" role="region" aria-label="{caption}" tabindex="0">
<table>
<caption>{caption}</caption>
<thead><tr>{columns}</tr></thead>
<tbody>
{lines}
</tbody>
</table>
</div>"""


def class_table(
    predictions: Predictions, probabilities: go.Figure, unit: str = "samples"
) -> str:
    """Return the figures' numbers as a table, which needs neither eyes nor scripts."""
    order = class_order(predictions)
    tested = counts_from_labels(predictions.labels, predictions.num_classes)
    columns = {f"Test {unit}": tested[order]}
    if predictions.source_counts is not None:
        columns = {f"Training {unit}": predictions.source_counts[order], **columns}
    cells = {
        name: [f"{n:,}" for n in counts.tolist()] for name, counts in columns.items()
    }
    for curve in probabilities.data[1:]:  # the first one is 1/C
        cells[curve.name] = [f"{100 * p:.2f}" for p in curve.y]
    names = [f"<bdi>{plain(predictions.class_names[c])}</bdi>" for c in order.tolist()]
    body = [
        (name, [f"<td>{cell}</td>" for cell in line])
        for name, *line in zip(names, *cells.values(), strict=True)
    ]
    caption = f"{unit.capitalize()}, and average probability in % by method"
    table = _scrolling_table(caption, ["Class", *cells], body)
    return f"<details><summary>Numbers by class</summary>{table}</details>"
