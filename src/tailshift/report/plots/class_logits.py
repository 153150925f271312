"""Logits of each class's positive and negative samples: the paper's Figure 3."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tailshift.metrics.sample_scores import row_slices
from tailshift.predictions import Predictions
from tailshift.report.plots import canvas
from tailshift.report.runs import ReportRun, by_method
from tailshift.report.series import class_order


@dataclass(frozen=True, eq=False)
class ClassLogits:
    """Mean and standard deviation of each class's logit; NaN if no sample is."""

    positive_mean: Tensor
    """Over the samples of the class, float64, shape (C,)."""
    positive_sd: Tensor
    negative_mean: Tensor
    """Over all other samples, likewise."""
    negative_sd: Tensor


def class_logits(predictions: Sequence[Predictions]) -> ClassLogits:
    r"""Return how :math:`f(x)[c]` is distributed for x of class c, and for all others.

    If classes can be told apart, LADER's optimum is :math:`\log C` for positive
    samples ([hong2021] Eq. 21). The deviation is that of the samples at hand (n).

    Args:
        predictions: The runs of one method, pooled; their logits as they are.

    Example:
        >>> f = torch.tensor([[2.0, 0.0], [4.0, 1.0], [1.0, 5.0]])
        >>> found = class_logits([Predictions(f, torch.tensor([0, 0, 1]))])
        >>> found.positive_mean
        tensor([3., 5.], dtype=torch.float64)
        >>> found.negative_mean
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    means = _averages(predictions, None)
    variances = _averages(predictions, means)
    (positive, negative), (positive_sd, negative_sd) = means, variances.sqrt()
    return ClassLogits(positive, positive_sd, negative, negative_sd)


def _averages(predictions: Sequence[Predictions], means: Tensor | None) -> Tensor:
    """Return means over positive and negative samples, or of squared gaps, (2, C)."""
    num_classes = predictions[0].num_classes
    totals = torch.zeros(2, num_classes, dtype=torch.float64)
    counts = torch.zeros(2, num_classes, dtype=torch.float64)
    for of_seed in predictions:
        for rows in row_slices(*of_seed.logits.shape):
            f, y = of_seed.logits[rows].double(), of_seed.labels[rows]
            is_own = y[:, None] == torch.arange(num_classes)  # (n, C)
            for sign, chosen in enumerate((is_own, ~is_own)):
                values = f if means is None else (f - means[sign]) ** 2
                totals[sign] += values.masked_fill(~chosen, 0.0).sum(0)
                counts[sign] += chosen.sum(0)
    return totals / counts  # 0 / 0 is NaN


@canvas.print_style()
def class_logits_plot(runs: Sequence[ReportRun]) -> Figure:
    """Return a panel for each method: means as lines, ± one deviation as bands.

    The dotted line is log C, which the positive logits approach as α grows.
    """
    methods = by_method(runs)
    first = runs[0].predictions
    order = class_order(first)
    names = [first.class_names[c] for c in order.tolist()]
    figure, panels = canvas.new_panels(
        len(methods), height=1.8 + canvas.room_for(names)
    )
    for (method, of_method), axes in zip(methods.items(), panels, strict=True):
        found = class_logits([run.predictions for run in of_method])
        _draw_band(axes, found.positive_mean, found.positive_sd, order, True)
        _draw_band(axes, found.negative_mean, found.negative_sd, order, False)
        canvas.draw_level(axes, math.log(first.num_classes), "log C")
        axes.set_title(canvas.as_text(method))
        canvas.label_classes(axes, names)
    canvas.name_axes(figure, y="logit")
    canvas.add_legend(figure, panels[0], columns=3 if len(panels) > 1 else 2)
    return figure


def _draw_band(
    axes: Axes, mean: Tensor, sd: Tensor, order: Tensor, is_positive: bool
) -> None:
    colour, label = (
        (canvas.GAIN, "positive") if is_positive else (canvas.LOSS, "negative")
    )
    mean, sd = mean[order], sd[order]
    x = range(len(mean))
    axes.fill_between(x, mean - sd, mean + sd, color=colour, alpha=0.25, linewidth=0)
    look = "-" if is_positive else "--"
    axes.plot(x, mean.numpy(), look, color=colour, label=f"{label} samples")
