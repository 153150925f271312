"""Plotly figures: class counts, average probability by class, accuracy by target."""

import html
import math
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go
import torch
from torch import Tensor

from tailshift.evaluation.summary import Summary
from tailshift.predictions import Predictions
from tailshift.report import style, tables
from tailshift.report.curves import average_probability
from tailshift.report.runs import ReportRun, by_method, method_keys, row_names
from tailshift.report.series import class_order

MAX_NAMED_TICKS = 30  # with more classes the axis counts ranks; hovering names them
MAX_TICK_LENGTH = 14
GROUP_BORDERS = {100: "many: more than 100", 20: "few: fewer than 20"}
BELOW_TICKS = {
    "showarrow": False,
    "yref": "paper",
    "y": 0,
    "yanchor": "top",
    "yshift": -24,
}


def average_probabilities(
    runs: Sequence[ReportRun],
) -> dict[str, tuple[str, bool, Tensor]]:
    """Return (method, is compensated, mean over its runs), by the rows' names."""
    curves = {}
    for method, of_method in by_method(runs).items():
        of_seed = [run.predictions for run in of_method]
        known = all(p.trained_prior is not None for p in of_seed)
        names = row_names(
            method, compensates=of_method[0].compensates, has_compensated=known
        )
        for is_compensated, name in names.items():
            means = [
                average_probability(p, compensated=is_compensated) for p in of_seed
            ]
            curves[name] = (method, is_compensated, torch.stack(means).mean(0))
    return curves


def class_counts_figure(predictions: Predictions, unit: str = "images") -> go.Figure:
    """Return the training samples of each class, largest first, on a log axis.

    Args:
        predictions: Predictions with the ``source_counts``.
        unit: What the samples are called.
    """
    if predictions.source_counts is None:
        raise ValueError(
            "`predictions` must know its source_counts to show them, but has none. "
            "Save it with the training images of each class."
        )
    order = class_order(predictions)
    counts = predictions.source_counts[order]
    names = [style.plain(predictions.class_names[c]) for c in order.tolist()]
    figure = style.empty_figure(f"Training {unit}")
    figure.add_bar(
        x=list(range(len(names))),
        y=counts.tolist(),
        customdata=names,
        name=f"training {unit}",
        showlegend=False,
        marker_color=style.NEUTRAL,
        hovertemplate=f"%{{customdata}}<br>%{{y}} training {unit}<extra></extra>",
    )
    figure.update_yaxes(type="log", dtick=1, range=_log_range(counts))
    for border, label in GROUP_BORDERS.items():
        if counts.min() < border < counts.max():
            _add_border(figure, border, label)
    return _with_class_axis(figure, names)


def _log_range(counts: Tensor) -> list[float]:
    lowest, highest = max(int(counts.min()), 1), int(counts.max())
    return [math.log10(lowest) - 0.3, math.log10(highest) + 0.1]


def _add_border(figure: go.Figure, border: int, label: str) -> None:
    line = {"color": style.NEUTRAL, "width": 1, "dash": "dot"}
    figure.add_shape(x0=0, x1=1, xref="paper", y0=border, y1=border, line=line)
    figure.add_annotation(
        text=label,
        x=1,
        xref="paper",
        xanchor="right",
        y=math.log10(border),  # annotations on a log axis are placed by the logarithm
        yanchor="bottom",
        showarrow=False,
        font_size=12,
    )


def average_probability_figure(runs: Sequence[ReportRun]) -> go.Figure:
    """Return the mean probability of each class over the test set: Figure 2.

    Raw probabilities are dashed; those compensated to the uniform prior are solid. A
    classifier free of the source prior lies on the dotted line, 1/C.
    """
    if not runs:
        raise ValueError("`runs` must hold at least one run, but is empty.")
    first = runs[0].predictions
    order, num_classes = class_order(first), first.num_classes
    names = [style.plain(first.class_names[c]) for c in order.tolist()]
    x = list(range(num_classes))
    figure = style.empty_figure("Average probability")
    figure.add_scatter(
        x=x,
        y=[1 / num_classes] * num_classes,
        name="uniform, 1/C",
        mode="lines",
        line={"color": style.NEUTRAL, "dash": "dot", "width": 2},
        hoverinfo="skip",
    )
    styles = style.method_styles(method_keys(runs))
    for name, (method, is_compensated, mean) in average_probabilities(runs).items():
        figure.add_scatter(
            x=x,
            y=mean[order].tolist(),
            customdata=names,
            name=style.plain(name),
            hovertemplate="%{fullData.name}<br>%{customdata}: %{y:.2%}<extra></extra>",
            **style.line_style(
                *styles[method],
                is_compensated,
                with_markers=num_classes <= MAX_NAMED_TICKS,
            ),
        )
    figure.update_yaxes(tickformat="~%", rangemode="tozero")
    return _with_class_axis(figure, names)


def target_shift_figure(summaries: Iterable[Summary]) -> go.Figure:
    """Return accuracy against the target's shift, forward 50 to backward 50.

    Raw results are dashed, compensated ones solid; bars are ± one standard deviation.
    """
    rows = tables.rows_by_method(summaries)
    targets = tables.columns_of(rows)
    styles = style.method_styles(tables.row_keys(rows))
    figure = style.empty_figure("Accuracy in %")
    for row in rows:
        figure.add_scatter(
            **_points(row, targets),
            **style.line_style(*styles[row.method], row.is_compensated),
        )
    figure.update_xaxes(
        tickvals=list(range(len(targets))),
        ticktext=[_tick(target) for target in targets],
        range=[-0.3, len(targets) - 0.7],
        tickangle=0,
    )
    for x, text in _second_ticks(targets):
        figure.add_annotation(x=x, text=text, **BELOW_TICKS)
    return figure


def _tick(target: str) -> str:
    """Return the target's imbalance ratio, or the name of one that is no shift."""
    kind, ratio = tables.split_target(target)
    return style.plain(ratio) or ("1" if kind == "uniform" else style.plain(kind))


def _second_ticks(targets: Sequence[str]) -> list[tuple[float, str]]:
    """Return where the kinds of shift are named, below the ratios."""
    kinds = [tables.split_target(target)[0] for target in targets]
    texts = {"forward": "← forward", "uniform": "uniform", "backward": "backward →"}
    places = {kind: [x for x, k in enumerate(kinds) if k == kind] for kind in texts}
    return [(sum(x) / len(x), texts[kind]) for kind, x in places.items() if x]


def _points(row: tables.TableRow, targets: Sequence[str]) -> dict[str, object]:
    present = [(x, t) for x, t in enumerate(targets) if t in row.cells]
    cells = [row.cells[t] for _, t in present]
    return {
        "x": [x for x, _ in present],
        "y": [100 * cell.mean for cell in cells],
        "name": style.plain(row.name),
        "customdata": [
            f"{style.plain(tables.target_label(t))}: {cell}"
            for (_, t), cell in zip(present, cells, strict=True)
        ],
        "hovertemplate": "%{fullData.name}<br>%{customdata} %<extra></extra>",
        "error_y": {
            "array": [100 * cell.sd for cell in cells],
            "visible": any(cell.num_runs > 1 for cell in cells),
            "thickness": 1,
            "width": 3,
        },
    }


def _with_class_axis(figure: go.Figure, names: Sequence[str]) -> go.Figure:
    """Put classes on the x axis by rank: equal names would share a category."""
    named = len(names) <= MAX_NAMED_TICKS
    figure.update_xaxes(
        title_text="Class" if named else "Rank of the class",
        range=[-0.6, len(names) - 0.4],
        showgrid=False,
    )
    if named:
        labels = [_shortened(name) for name in names]
        figure.update_xaxes(tickvals=list(range(len(names))), ticktext=labels)
    return figure


def _shortened(escaped: str) -> str:
    name = html.unescape(escaped)
    if len(name) <= MAX_TICK_LENGTH:
        return escaped
    return style.plain(name[: MAX_TICK_LENGTH - 1]) + "…"
