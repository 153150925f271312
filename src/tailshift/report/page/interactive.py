"""The report's interactive part: the logits in the page, and the page's own scripts."""

import base64
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.metrics.accuracy import class_groups
from tailshift.predictions import Predictions
from tailshift.priors import counts_from_labels
from tailshift.report.runs import ReportRun, method_keys, unit_of, untested_classes
from tailshift.report.series import class_order
from tailshift.report.style import method_colours, one_line

EXPLORER_SCRIPTS = (
    "interactive_model.js",
    "interactive_charts.js",
    "interactive_elements.js",
    "interactive.js",
)
BYTES_PER_LOGIT = 8 / 3  # two, written as base64
BYTES_PER_CLASS = 200  # a name, a count and a prior, generously
SAMPLE_SEED = 0


def explorer(runs: Sequence[ReportRun], *, room: int) -> dict[str, Any]:
    """Return the logits and notes of the part that changes the target.

    Args:
        runs: Runs on the same classes.
        room: Maximum size in bytes; larger data are sampled, or left out.
    """
    chosen, rows, notes = fit(runs, room)
    return {
        "data": payload(chosen, rows) if chosen else None,
        "notes": [*notes, *_what_is_unknown(runs)],
        "order": _order(runs),
    }


def fit(
    runs: Sequence[ReportRun], room: int
) -> tuple[list[ReportRun], list[Tensor], list[str]]:
    """Return the runs that fit, the test images of each, and sentences on what was cut.

    If all runs are too many, the first of each method is kept; if these are too
    large still, as many test images of each class as there is room for.
    """
    num_classes = runs[0].predictions.num_classes
    room -= BYTES_PER_CLASS * num_classes * len(runs)
    size = int(room / BYTES_PER_LOGIT / num_classes)  # test images, over all runs
    if sum(len(run.predictions.labels) for run in runs) <= size:
        return list(runs), [torch.arange(len(r.predictions.labels)) for r in runs], []
    first = {run.method: run for run in reversed(runs)}
    kept = [run for run in runs if first[run.method] is run]
    notes = (
        []
        if len(kept) == len(runs)
        else ["Only the first run of each method is included here."]
    )
    rows = [
        stratified_sample(run.predictions.labels, num_classes, size // len(kept))
        for run in kept
    ]
    if any(not len(sample) for sample in rows):
        return [], [], [_too_large(num_classes, unit_of(runs))]
    whole = len(kept[0].predictions.labels)
    if len(rows[0]) < whole:
        notes.append(
            f"These numbers use {len(rows[0]):,} of {whole:,} test {unit_of(runs)}, "
            "balanced over the classes as far as possible: all of them would exceed "
            "the page limit of 20 MB."
        )
    return kept, rows, notes


def _too_large(num_classes: int, unit: str) -> str:
    return (
        f"With {num_classes:,} classes, one test {unit.removesuffix('s')} per class "
        "already exceeds the page limit of 20 MB, so the target cannot be changed "
        "here. The tables and figures below are complete."
    )


def stratified_sample(labels: Tensor, num_classes: int, size: int) -> Tensor:
    """Return at most ``size`` rows, as many of each class as there are or fit.

    The rows are drawn at random with a fixed seed, and ascend; none are returned if
    one of each class would be too many.

    Args:
        labels: Class indices, shape (N,).
        num_classes: Number of classes C.
        size: The largest number of rows.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
        >>> labels[stratified_sample(labels, num_classes=2, size=5)]
        tensor([0, 0, 0, 1, 1])
    """
    n = counts_from_labels(labels, num_classes)  # (C,)
    limits = range(int(n.max()) + 1)
    per_class = bisect_right(limits, size, key=lambda k: int(n.clamp(max=k).sum())) - 1
    generator = torch.Generator().manual_seed(SAMPLE_SEED)
    shuffled = torch.randperm(len(labels), generator=generator)
    order = shuffled[labels[shuffled].argsort(stable=True)]  # class by class
    position = torch.arange(len(labels)) - (n.cumsum(0) - n)[labels[order]]
    return order[position < per_class].sort().values


def payload(runs: Sequence[ReportRun], rows: Sequence[Tensor]) -> dict[str, Any]:
    """Return what the page computes with; names in it are data, not yet escaped.

    Args:
        runs: Runs on the same classes; those of one method are averaged.
        rows: The test images of each run that the page carries.
    """
    first = runs[0].predictions
    counts, grouping = first.source_counts, first.group_counts
    groups = None if grouping is None else class_groups(grouping)
    colours = method_colours(method_keys(runs))
    methods: dict[str, list[dict[str, Any]]] = {}
    for run, kept in zip(runs, rows, strict=True):
        methods.setdefault(run.method, []).append(_run(run.predictions, kept))
    return {
        "unit": unit_of(runs),
        "classNames": [one_line(name) for name in first.class_names],
        "counts": None if counts is None else counts.tolist(),
        "order": class_order(first).tolist(),
        "groups": groups and {name: ids.tolist() for name, ids in groups.items()},
        "methods": [
            {"name": one_line(name), "colour": colours[name], "runs": of_method}
            for name, of_method in methods.items()
        ],
    }


def _run(predictions: Predictions, rows: Tensor) -> dict[str, Any]:
    f = predictions.logits[rows].float()  # (n, C)
    # A constant a row changes no answer; half precision is finest near the largest.
    f = (f - f.amax(dim=1, keepdim=True)).half()
    prior = predictions.logit_prior
    return {
        "logits": _base64(f.numpy().astype("<f2")),
        "labels": _base64(predictions.labels[rows].numpy().astype("<u2")),
        "trainedPrior": None if prior is None else prior.tolist(),
    }


def _base64(array: NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _order(runs: Sequence[ReportRun]) -> str:
    if runs[0].predictions.source_counts is None:
        return (
            "Training counts are unknown: forward favours the first class ids, "
            "backward the last."
        )
    return (
        f"Forward decreases from the class with the most training {unit_of(runs)} to "
        "the class with the fewest; backward increases. The number is the ratio of the "
        "largest share to the smallest."
    )


def _what_is_unknown(runs: Sequence[ReportRun]) -> list[str]:
    notes = []
    if all(run.predictions.logit_prior is None for run in runs):
        notes.append(
            "The prior of the logits is unknown, so only the accuracy as trained is "
            "shown."
        )
    if left_out := untested_classes(runs[0]):
        notes.append(left_out)
    return notes
