"""Accuracy against the target's shift, for several methods."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tailshift.evaluation.summary import Summary
from tailshift.report import tables
from tailshift.report.plots import canvas


@dataclass(frozen=True)
class ShiftCurve:
    """One line of the figure; accuracies are fractions, NaN if there is none."""

    name: str
    method: str
    is_compensated: bool
    means: tuple[float, ...]
    """One for each target."""
    sds: tuple[float, ...]
    """Standard deviations over seeds; 0 for a single one."""
    key: str = ""
    """The method's registered name, which its colour goes by."""


def shift_curves(
    summaries: Iterable[Summary],
) -> tuple[tuple[str, ...], list[ShiftCurve]]:
    """Return the targets, in the order they come in, and a line for each method.

    Args:
        summaries: Accuracies by method and target.
    """
    rows = tables.rows_by_method(summaries)
    targets = tuple(tables.columns_of(rows))
    curves = []
    for row in rows:
        cells = [row.cells.get(t, tables.Cell(math.nan, math.nan, 0)) for t in targets]
        means, sds = tuple(c.mean for c in cells), tuple(c.sd for c in cells)
        about = row.name, row.method, row.is_compensated
        curves.append(ShiftCurve(*about, means, sds, row.key))
    return targets, curves


@canvas.print_style()
def target_shift_plot(summaries: Iterable[Summary]) -> Figure:
    """Return accuracy by target: raw dashed, compensated solid, ± sd over seeds."""
    targets, curves = shift_curves(summaries)
    looks = canvas.method_looks({curve.method: curve.key for curve in curves})
    legend_rows = -(-len(curves) // 2)
    size = (canvas.COLUMN, 2.4 + 0.16 * legend_rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.errorbar(
            range(len(targets)),
            [100 * mean for mean in curve.means],
            yerr=[100 * sd for sd in curve.sds] if any(curve.sds) else None,
            label=canvas.as_text(curve.name),
            elinewidth=0.8,
            capsize=2,
            **looks[curve.method],
            **canvas.line_look(curve.is_compensated),
        )
    axes.set_ylabel("accuracy in %")
    _label_targets(axes, targets)
    canvas.add_legend(figure, axes, columns=2)
    return figure


def _label_targets(axes: Axes, targets: Sequence[str]) -> None:
    """Write the ratios along the axis, and below them which way they lean."""
    parts = [tables.split_target(target) for target in targets]
    kinds = [kind for kind, _ in parts]
    if not set(kinds) <= {"forward", "uniform", "backward"}:
        names = [canvas.as_text(tables.target_label(target), 20) for target in targets]
        axes.set_xticks(range(len(targets)), names, rotation=90)
        return
    labels = [f"{ratio or 1}\n" for _, ratio in parts]  # two lines each, to be level
    for kind in dict.fromkeys(kinds):
        places = [x for x, other in enumerate(kinds) if other == kind]
        labels[places[len(places) // 2]] += kind
    axes.set_xticks(range(len(targets)), labels)
    axes.set_xlabel("imbalance ratio of the target")
