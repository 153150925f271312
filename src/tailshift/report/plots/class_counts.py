"""Training images of each class: the long tail itself."""

from matplotlib.figure import Figure
from torch import Tensor

from tailshift.metrics.accuracy import class_groups
from tailshift.predictions import Predictions
from tailshift.report.plots import canvas
from tailshift.report.series import class_order
from tailshift.report.style import COLOURS, NEUTRAL

GROUP_COLOURS = {
    "many": COLOURS["balanced_softmax"],
    "medium": "#56B4E9",
    "few": COLOURS["softmax"],
}


def sorted_counts(predictions: Predictions) -> Tensor:
    """Return the training images of each class, largest first, int64, shape (C,).

    Example:
        >>> import torch
        >>> counts = torch.tensor([4, 9, 1])
        >>> sorted_counts(Predictions(torch.eye(3), torch.arange(3), counts))
        tensor([9, 4, 1])
    """
    if predictions.source_counts is None:
        raise ValueError(
            "`predictions` must know its source_counts to show them, but has none. "
            "Save it with the training images of each class."
        )
    return predictions.source_counts[class_order(predictions)]


@canvas.print_style()
def class_counts_plot(predictions: Predictions) -> Figure:
    """Return the counts as bars on a log axis, coloured by many, medium and few.

    The legend says how many classes each group has.
    """
    counts = sorted_counts(predictions)
    names = [predictions.class_names[c] for c in class_order(predictions).tolist()]
    size = (canvas.COLUMN, 2.1 + canvas.room_for(names))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    assert predictions.group_counts is not None  # as sorted_counts has checked
    grouping = predictions.group_counts[class_order(predictions)]
    for group, members in class_groups(grouping).items():
        if len(members):
            label = f"{group} ({len(members)})"
            heights = counts[members].numpy()
            colour = GROUP_COLOURS[group]
            axes.bar(members.numpy(), heights, 0.9, color=colour, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")  # 100, where 10² would be in small print
    canvas.name_axes(figure, y="training images")
    axes.set_ylim(0.7 * max(int(counts.min()), 1), 1.5 * int(counts.max()))
    for border in (100, 20):
        if counts.min() < border < counts.max():
            axes.axhline(border, color=NEUTRAL, linestyle=":", linewidth=1)
    canvas.label_classes(axes, names)
    canvas.add_legend(figure, axes, columns=3)
    return figure
