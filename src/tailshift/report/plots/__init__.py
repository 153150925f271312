"""Matplotlib figures for print: the numbers first, then the drawing, one a file."""

from tailshift.report.curves import probability_curves, shift_curves
from tailshift.report.plots.accuracy_change import (
    accuracy_change_plot,
    accuracy_changes,
)
from tailshift.report.plots.average_probability import average_probability_plot
from tailshift.report.plots.canvas import save_figure
from tailshift.report.plots.class_counts import class_counts_plot, sorted_counts
from tailshift.report.plots.class_logits import class_logits, class_logits_plot
from tailshift.report.plots.reliability import reliabilities, reliability_plot
from tailshift.report.plots.target_shift import target_shift_plot
from tailshift.report.plots.writing import FIGURES, write_figures

__all__ = [
    "FIGURES",
    "accuracy_change_plot",
    "accuracy_changes",
    "average_probability_plot",
    "class_counts_plot",
    "class_logits",
    "class_logits_plot",
    "probability_curves",
    "reliabilities",
    "reliability_plot",
    "save_figure",
    "shift_curves",
    "sorted_counts",
    "target_shift_plot",
    "write_figures",
]
