"""Accuracy against the target's shift, for several methods."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tailshift.evaluation.summary import Summary
from tailshift.report.plots.canvas import (
    COLUMN,
    add_legend,
    as_text,
    line_look,
    method_looks,
    print_style,
)
from tailshift.report.plots.series import series_name, shown_ways
from tailshift.report.tables import split_target, target_label


@dataclass(frozen=True)
class ShiftCurve:
    """One line of the figure; accuracies are fractions, NaN where there is none."""

    name: str
    method: str
    is_compensated: bool
    means: tuple[float, ...]
    """One for each target."""
    sds: tuple[float, ...]
    """Standard deviations over seeds; 0 for a single one."""


def shift_curves(
    summaries: Iterable[Summary],
) -> tuple[tuple[str, ...], list[ShiftCurve]]:
    """Return the targets, in the order they come in, and a line for each method.

    Args:
        summaries: Accuracies by method and target.
    """
    by_method: dict[str, dict[str, Summary]] = {}
    for summary in summaries:
        by_method.setdefault(summary.method, {})[summary.target] = summary
    targets = tuple(dict.fromkeys(t for found in by_method.values() for t in found))
    curves = []
    for method, found in by_method.items():
        known = any(not math.isnan(s.compensated_mean) for s in found.values())
        for is_compensated in shown_ways(method, known):
            points = [_point(found.get(target), is_compensated) for target in targets]
            means, sds = zip(*points, strict=True)
            name = series_name(method, is_compensated)
            curves.append(ShiftCurve(name, method, is_compensated, means, sds))
    return targets, curves


def _point(summary: Summary | None, is_compensated: bool) -> tuple[float, float]:
    if summary is None:
        return math.nan, math.nan
    if is_compensated:
        return summary.compensated_mean, summary.compensated_sd
    return summary.raw_mean, summary.raw_sd


@print_style()
def target_shift_plot(summaries: Iterable[Summary]) -> Figure:
    """Return accuracy by target: raw dashed, compensated solid, ± sd over seeds."""
    targets, curves = shift_curves(summaries)
    looks = method_looks([curve.method for curve in curves])
    legend_rows = -(-len(curves) // 2)
    size = (COLUMN, 2.4 + 0.16 * legend_rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.errorbar(
            range(len(targets)),
            [100 * mean for mean in curve.means],
            yerr=[100 * sd for sd in curve.sds] if any(curve.sds) else None,
            label=as_text(curve.name),
            elinewidth=0.8,
            capsize=2,
            **looks[curve.method],
            **line_look(curve.is_compensated),
        )
    axes.set_ylabel("accuracy in %")
    _label_targets(axes, targets)
    add_legend(figure, axes, columns=2)
    return figure


def _label_targets(axes: Axes, targets: Sequence[str]) -> None:
    """Write the ratios along the axis, and below them which way they lean."""
    parts = [split_target(target) for target in targets]
    kinds = [kind for kind, _ in parts]
    if not set(kinds) <= {"forward", "uniform", "backward"}:
        names = [as_text(target_label(target), 20) for target in targets]
        axes.set_xticks(range(len(targets)), names, rotation=90)
        return
    labels = [f"{ratio or 1}\n" for _, ratio in parts]  # two lines each, to be level
    for kind in dict.fromkeys(kinds):
        places = [x for x, other in enumerate(kinds) if other == kind]
        labels[places[len(places) // 2]] += kind
    axes.set_xticks(range(len(targets)), labels)
    axes.set_xlabel("imbalance ratio of the target")
