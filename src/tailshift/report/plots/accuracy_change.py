"""Accuracy that each class gains or loses when answers are compensated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tailshift.metrics.accuracy import class_groups
from tailshift.metrics.sample_scores import first_argmax
from tailshift.predictions import Predictions
from tailshift.report.plots import canvas
from tailshift.report.rows import target_label
from tailshift.report.runs import ReportRun, by_method
from tailshift.report.series import answers, class_order


@dataclass(frozen=True, eq=False)
class AccuracyChange:
    """One panel: compensated less raw accuracy of each class."""

    method: str
    change: Tensor
    """In the order of the class ids, in [−1, 1], NaN without samples, shape (C,)."""

    def by_group(self, class_counts: Tensor) -> dict[str, float]:
        """Return the mean over many-, medium- and few-shot classes; NaN for none."""
        groups = class_groups(class_counts)
        return {name: self.change[ids].nanmean().item() for name, ids in groups.items()}


def class_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of right answers in each class, float64, shape (C,).

    Example:
        >>> f = torch.tensor([[2.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
        >>> class_accuracy(f, torch.tensor([0, 0, 1]))
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    num_classes = logits.shape[1]
    right = labels[first_argmax(logits) == labels]
    totals = torch.bincount(labels, minlength=num_classes)
    return torch.bincount(right, minlength=num_classes) / totals.double()


def accuracy_changes(
    runs: Sequence[ReportRun], target: str = "uniform"
) -> list[AccuracyChange]:
    """Return the change of each method that compensation to a target changes.

    Args:
        runs: Runs on the same classes; the mean is over seeds.
        target: The name of a label distribution, or a file of counts.
    """
    changes = []
    for method, of_method in by_method(runs).items():
        of_seeds = [run.predictions for run in of_method]
        if all(p.logit_prior is not None for p in of_seeds):
            change = torch.stack([_change(p, target) for p in of_seeds]).mean(0)
            if change.nan_to_num().any():
                changes.append(AccuracyChange(method, change))
    return changes


def _change(predictions: Predictions, target: str) -> Tensor:
    raw, compensated = (
        class_accuracy(
            answers(predictions, target, compensated=way), predictions.labels
        )
        for way in (False, True)
    )
    return compensated - raw


@canvas.print_style()
def accuracy_change_plot(runs: Sequence[ReportRun], target: str = "uniform") -> Figure:
    """Return a panel for each method: a bar a class, the most frequent first."""
    changes = accuracy_changes(runs, target)
    if not changes:
        raise ValueError(
            "`runs` must change with compensation to be compared, but none does on "
            f"the target {target_label(target)!r}. Use another target."
        )
    first = runs[0].predictions
    order = class_order(first)
    names = [first.class_names[c] for c in order.tolist()]
    height = 1.9 + canvas.room_for(names)
    figure, panels = canvas.new_panels(len(changes), height=height, max_columns=2)
    for change, axes in zip(changes, panels, strict=True):
        _draw(axes, 100 * change.change[order])
        canvas.label_classes(axes, names)
        title = canvas.as_text(
            f"{change.method}, compensated to {target_label(target)}", 50
        )
        axes.set_title(title + _group_line(change, first.group_counts))
    canvas.name_axes(figure, y="points of accuracy gained")
    return figure


def _draw(axes: Axes, points: Tensor) -> None:
    colours = [
        canvas.GAIN if gained else canvas.LOSS for gained in (points >= 0).tolist()
    ]
    axes.bar(range(len(points)), points.numpy(), width=0.85, color=colours)
    axes.axhline(0, color="black", linewidth=0.6)


def _group_line(change: AccuracyChange, class_counts: Tensor | None) -> str:
    """Return the groups' means as a second line of the title."""
    if class_counts is None:
        return ""
    means = change.by_group(class_counts)
    parts = [f"{g} {100 * m:+.1f}" for g, m in means.items() if not math.isnan(m)]
    return "\n" + ", ".join(parts).replace("-", "−")
