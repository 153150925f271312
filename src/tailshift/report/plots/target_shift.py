"""Accuracy against the target's shift, for several methods."""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tailshift.evaluation.summary import Summary
from tailshift.report.curves import shift_curves
from tailshift.report.plots import canvas
from tailshift.report.rows import split_target, target_label


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
    parts = [split_target(target) for target in targets]
    kinds = [kind for kind, _ in parts]
    if not set(kinds) <= {"forward", "uniform", "backward"}:
        names = [canvas.as_text(target_label(target), 20) for target in targets]
        axes.set_xticks(range(len(targets)), names, rotation=90)
        return
    labels = [f"{ratio or 1}\n" for _, ratio in parts]  # two lines each, to be level
    for kind in dict.fromkeys(kinds):
        places = [x for x, other in enumerate(kinds) if other == kind]
        labels[places[len(places) // 2]] += kind
    axes.set_xticks(range(len(targets)), labels)
    axes.set_xlabel("imbalance ratio of the target")
