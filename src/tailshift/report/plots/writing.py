"""All figures of some runs, written into a folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from matplotlib.figure import Figure

from tailshift.evaluation.summary import Summary
from tailshift.registry import Registry
from tailshift.report.plots import accuracy_change
from tailshift.report.plots.average_probability import average_probability_plot
from tailshift.report.plots.canvas import figure_paths, save_figure
from tailshift.report.plots.class_counts import class_counts_plot
from tailshift.report.plots.class_logits import class_logits_plot
from tailshift.report.plots.reliability import reliability_plot
from tailshift.report.plots.target_shift import target_shift_plot
from tailshift.report.rows import target_label
from tailshift.report.runs import (
    ReportRun,
    check_runs,
    report_targets,
    summarise_runs,
)

_Runs: TypeAlias = Sequence[ReportRun]

FIGURES: Registry[Callable[[_Runs, str], Figure]] = Registry("figure")
"""Each figure of runs and a target, by the name of its files."""

FIGURES.register("reliability")(reliability_plot)
FIGURES.register("accuracy_change")(accuracy_change.accuracy_change_plot)


@FIGURES.register("class_counts", about=class_counts_plot)
def _class_counts(runs: _Runs, target: str) -> Figure:
    return class_counts_plot(runs[0].predictions)


@FIGURES.register("average_probability", about=average_probability_plot)
def _average_probability(runs: _Runs, target: str) -> Figure:
    return average_probability_plot(runs)


@FIGURES.register("class_logits", about=class_logits_plot)
def _class_logits(runs: _Runs, target: str) -> Figure:
    return class_logits_plot(runs)


@FIGURES.register("target_shift", about=target_shift_plot)
def _target_shift(runs: _Runs, target: str) -> Figure:
    return target_shift_plot(summarise_shifts(runs))


def write_figures(
    runs: _Runs,
    folder: str | Path,
    *,
    figures: Sequence[str] | None = None,
    target: str = "uniform",
    overwrite: bool = False,
    announce: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Write figures as SVG and PNG; return their paths.

    Args:
        runs: Runs on the same classes; those that differ only in the seed are averaged.
        folder: Folder to write to; made if it is missing.
        figures: Names of ``FIGURES``; by default all of them.
        target: What ``reliability`` and ``accuracy_change`` compensate to.
        overwrite: Replace files that exist; otherwise nothing is written if one does.
        announce: Called with a sentence about each figure that is skipped.
    """
    check_runs(runs)
    if Path(folder).is_file():
        raise NotADirectoryError(f"{folder} is a file, but must be a folder.")
    chosen = {}
    for name in dict.fromkeys(map(check_figure, figures or FIGURES)):
        reason = _lacking(name, runs, target)
        if reason:
            announce(f"{name} is skipped: {reason}")
        else:
            chosen[name] = figure_paths(Path(folder), name)
    for path in (path for paths in chosen.values() for path in paths):
        if path.exists() and not overwrite:
            raise FileExistsError(
                f"{path} exists. Replace it (--force) or name another folder."
            )
    for name, paths in chosen.items():
        save_figure(FIGURES.get(name)(runs, target), paths, overwrite=overwrite)
    return [path for paths in chosen.values() for path in paths]


def check_figure(name: str) -> str:
    """Return a figure's name; an unknown one is refused with the nearest."""
    FIGURES.get(name)
    return name


def _lacking(name: str, runs: _Runs, target: str) -> str:
    """Return why a figure cannot be drawn, or nothing."""
    has_counts = runs[0].predictions.source_counts is not None
    if name in ("class_counts", "target_shift") and not has_counts:
        return "the runs do not say how many training images each class has."
    if name == "accuracy_change" and not accuracy_change.accuracy_changes(runs, target):
        return f"compensation to {target_label(target)} changes no answer of the runs."
    return ""


def summarise_shifts(runs: _Runs) -> list[Summary]:
    """Return accuracies on the paper's eleven targets, as its tables have them."""
    return summarise_runs(runs, report_targets(runs))
