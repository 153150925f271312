"""Accuracy against the target's shift: every number at its place."""

import math
from dataclasses import replace

import pytest

from tailshift.evaluation import evaluate
from tailshift.evaluation.summary import Summary, summarise
from tailshift.report.plots import shift_curves, target_shift_plot
from tailshift.report.plots.writing import summarise_shifts
from tailshift.targets import PAPER_TARGETS

SUMMARIES = [
    Summary("Softmax", "uniform", 0.4, 0.01, 0.5, 0.02, 3),
    Summary("Softmax", "backward:10", 0.2, 0.0, 0.45, 0.0, 3),
    Summary("LADE", "uniform", 0.5, 0.0, 0.6, 0.0, 1, compensates=True),
    Summary("Mine", "uniform", 0.3, 0.0, math.nan, math.nan, 1),
]


def test_shift_curves__one_line_a_method_and_way() -> None:
    targets, curves = shift_curves(SUMMARIES)
    assert targets == ("uniform", "backward:10")
    assert [curve.name for curve in curves] == ["Softmax", "PC Softmax", "LADE", "Mine"]
    raw, compensated, lade, mine = curves
    assert (raw.means, raw.sds) == ((0.4, 0.2), (0.01, 0.0))
    assert (compensated.means, compensated.sds) == ((0.5, 0.45), (0.02, 0.0))
    assert lade.means[0] == 0.6
    assert math.isnan(lade.means[1])
    assert mine.means[0] == 0.3


def test_summarise_shifts__is_evaluate_on_the_papers_targets(make_runs) -> None:
    runs = make_runs(("Softmax",), 2)
    records = [evaluate(run.predictions, PAPER_TARGETS) for run in runs]
    expected = summarise({"Softmax": records})
    assert summarise_shifts(runs) == [replace(s, key="softmax") for s in expected]


def test_plot__from_forward_over_uniform_to_backward(make_runs) -> None:
    summaries = summarise_shifts(make_runs(num_seeds=2))
    [axes] = target_shift_plot(summaries).axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[:4] == ["50\n", "25\n", "10\nforward", "5\n"]
    assert labels[5] == "1\nuniform"
    assert labels[8] == "10\nbackward"
    assert len(axes.containers) == 5  # PC Balanced Softmax too
    line = axes.containers[0].lines[0]
    [first] = [
        s for s in summaries if (s.method, s.target) == ("Softmax", "forward:50")
    ]
    assert line.get_ydata()[0] == pytest.approx(100 * first.raw_mean)
    assert axes.containers[0].has_yerr


def test_plot__other_targets_are_named() -> None:
    summaries = [Summary("X", t, 0.5, 0.0, 0.5, 0.0, 1) for t in ("uniform", "a$b.csv")]
    [axes] = target_shift_plot(summaries).axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["uniform", r"a\$b.csv"]
    assert not axes.containers[0].has_yerr  # a single run has no deviation
