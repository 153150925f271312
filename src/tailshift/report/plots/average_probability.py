"""The mean probability of each class over a uniform test set: the paper's Figure 2."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from tailshift.report.page.figures import average_probability, class_order
from tailshift.report.plots import canvas
from tailshift.report.plots.series import series_of
from tailshift.report.runs import ReportRun


@dataclass(frozen=True, eq=False)
class ProbabilityCurve:
    """One line of the figure."""

    name: str
    method: str
    is_compensated: bool
    mean: Tensor
    """Mean probability of each class, the most frequent in training first, (C,)."""
    key: str = ""
    """The method's registered name, which its colour goes by."""

    def ends(self, share: float = 0.1) -> tuple[float, float]:
        """Return the mean over the first and over the last tenth of the classes."""
        size = max(1, round(share * len(self.mean)))
        return self.mean[:size].mean().item(), self.mean[-size:].mean().item()


def probability_curves(runs: Sequence[ReportRun]) -> list[ProbabilityCurve]:
    r"""Return :math:`E_{p_u}[p(c|x)]` of each class, raw and compensated to uniform.

    It is 1/C for every class if the probabilities are those of the uniform target.

    Args:
        runs: Runs on the same classes; the mean is over seeds too.
    """
    curves = []
    for series in series_of(runs, "uniform"):
        means = [
            average_probability(p, compensated=series.is_compensated)
            for p in series.predictions
        ]
        mean = torch.stack(means).mean(0)[class_order(series.predictions[0])]
        about = series.name, series.method, series.is_compensated
        curves.append(ProbabilityCurve(*about, mean, series.key))
    return curves


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
