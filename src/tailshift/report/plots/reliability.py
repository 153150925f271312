"""Reliability diagrams, a panel for each method: the paper's Figures 4 and 6."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tailshift.metrics.calibration_error import ReliabilityDiagram, reliability_diagram
from tailshift.report.plots import canvas
from tailshift.report.runs import ReportRun
from tailshift.report.series import Series, answers, series_of, weigh_samples
from tailshift.report.style import NEUTRAL

ACCURACY = "#56B4E9"


@dataclass(frozen=True, eq=False)
class Reliability:
    """One panel: the bins over all seeds, and the mean of the seeds' errors."""

    name: str
    edges: Tensor
    """Edges of the bins, shape (M + 1,)."""
    shares: Tensor
    """Each bin's part of the samples' weight, sums to 1, shape (M,)."""
    confidence: Tensor
    """Mean highest probability in each bin; NaN if it is empty, shape (M,)."""
    accuracy: Tensor
    """Share of right answers likewise, shape (M,)."""
    ece: float
    """Expected calibration error, the mean over seeds."""


def reliabilities(
    runs: Sequence[ReportRun], target: str = "uniform"
) -> list[Reliability]:
    """Return the diagram of each method, raw and compensated to the target.

    Test samples are weighted to the target, none is dropped.

    Args:
        runs: Runs on the same classes.
        target: The name of a label distribution, or a file of counts.
    """
    return [_reliability(series, target) for series in series_of(runs, target)]


def _reliability(series: Series, target: str) -> Reliability:
    diagrams = [
        reliability_diagram(
            answers(p, target, compensated=series.is_compensated),
            p.labels,
            sample_weights=weigh_samples(p, target).weights[0],
        )
        for p in series.predictions
    ]
    shares = torch.stack([d.shares for d in diagrams])  # (seeds, M)

    def pooled(values: Sequence[Tensor]) -> Tensor:
        return (shares * torch.stack(list(values))).nansum(0) / shares.sum(0)

    return Reliability(
        series.name,
        diagrams[0].edges,
        shares.mean(0),
        pooled([d.confidence for d in diagrams]),
        pooled([d.accuracy for d in diagrams]),
        fmean(_error(d) for d in diagrams),
    )


def _error(diagram: ReliabilityDiagram) -> float:
    return diagram.expected_calibration_error


@canvas.print_style()
def reliability_plot(runs: Sequence[ReportRun], target: str = "uniform") -> Figure:
    """Return a panel for each method: bars of accuracy, gaps to confidence hatched.

    The grey bars along the bottom are the bins' shares of the samples.
    """
    found = reliabilities(runs, target)
    figure, panels = canvas.new_panels(len(found), height=1.85, width=1.77)
    for reliability, axes in zip(found, panels, strict=True):
        _draw(axes, reliability)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_title(canvas.as_text(reliability.name))
    canvas.name_axes(figure, x="confidence", y="accuracy")
    canvas.add_legend(figure, panels[0], columns=min(4, len(panels)))
    return figure


def _draw(axes: Axes, found: Reliability) -> None:
    left, widths = found.edges[:-1].numpy(), found.edges.diff().numpy()
    accuracy, confidence = found.accuracy.numpy(), found.confidence.numpy()
    bars: dict[str, Any] = {"x": left, "width": widths, "align": "edge"}
    axes.bar(
        height=accuracy,
        color=ACCURACY,
        edgecolor="white",
        linewidth=0.4,
        label="accuracy",
        **bars,
    )
    axes.bar(
        height=confidence - accuracy,
        bottom=accuracy,
        color="none",
        edgecolor=canvas.LOSS,
        hatch="//////",
        linewidth=0.6,
        label="gap to confidence",
        **bars,
    )
    axes.bar(
        height=found.shares.numpy(), color=NEUTRAL, label="share of samples", **bars
    )
    axes.plot([0, 1], [0, 1], color="black", linestyle=":", label="calibrated")
    axes.text(0.05, 0.93, f"ECE {found.ece:.3f}", va="top", transform=axes.transAxes)
