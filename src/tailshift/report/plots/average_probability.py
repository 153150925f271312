"""The mean probability of each class over a uniform test set: the paper's Figure 2."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from tailshift.report.curves import probability_curves
from tailshift.report.plots import canvas
from tailshift.report.runs import ReportRun
from tailshift.report.series import class_order


@canvas.print_style()
def average_probability_plot(runs: Sequence[ReportRun]) -> Figure:
    """Return a panel for each method: raw dashed, compensated solid, 1/C dotted."""
    curves = probability_curves(runs)
    looks = canvas.method_looks({curve.method: curve.key for curve in curves})
    first = runs[0].predictions
    names = [first.class_names[c] for c in class_order(first).tolist()]
    figure, panels = canvas.new_panels(len(looks), height=1.7 + canvas.room_for(names))
    for method, axes in zip(looks, panels, strict=True):
        for curve in curves:
            if curve.method == method:
                axes.plot(
                    100 * curve.mean.numpy(),
                    label=canvas.as_text(curve.name),
                    color=looks[method]["color"],
                    **canvas.line_look(curve.is_compensated),
                )
        canvas.draw_level(axes, 100 / first.num_classes, "1/C")
        canvas.label_classes(axes, names)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper right")
    canvas.name_axes(figure, y="average probability in %")
    return figure
