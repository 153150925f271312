"""The figures hold the numbers they should, in the order they should."""

import math

import pytest
import torch

from tailshift.evaluation.summary import Summary
from tailshift.predictions import Predictions
from tailshift.report.curves import average_probability
from tailshift.report.page.figures import (
    average_probability_figure,
    class_counts_figure,
    target_shift_figure,
)
from tailshift.report.runs import ReportRun, summarise_runs
from tailshift.targets import PAPER_TARGETS


def _reference_average_probability(
    predictions: Predictions, compensated: bool
) -> list[float]:
    """The paper's Figure 2, one sample and one class at a time; balanced tests only."""
    num_samples, num_classes = predictions.logits.shape
    totals = [0.0] * num_classes
    for f in predictions.logits.tolist():
        if compensated:
            assert predictions.trained_prior is not None
            p = predictions.trained_prior.tolist()
            f = [v - math.log(p[c]) + math.log(1 / len(f)) for c, v in enumerate(f)]
        weights = [math.exp(v - max(f)) for v in f]
        for c, weight in enumerate(weights):
            totals[c] += weight / sum(weights) / num_samples
    return totals


@pytest.mark.parametrize("compensated", [False, True])
def test_average_probability__agrees_with_loops(make_runs, compensated: bool) -> None:
    [run] = make_runs(("Softmax",), 1)
    ours = average_probability(run.predictions, compensated=compensated)
    theirs = _reference_average_probability(run.predictions, compensated)
    torch.testing.assert_close(ours, torch.tensor(theirs, dtype=torch.float64))
    assert ours.sum().item() == pytest.approx(1.0)


def test_average_probability__classes_weigh_the_same_on_an_unbalanced_test() -> None:
    """Rows (1/2, 1/2), thrice class 0, and (1/4, 3/4): mean (3/8, 5/8)."""
    probs = torch.tensor([[0.5, 0.5]] * 3 + [[0.25, 0.75]])
    predictions = Predictions(probs.log(), torch.tensor([0, 0, 0, 1]))
    mean = average_probability(predictions, compensated=False)
    torch.testing.assert_close(mean, torch.tensor([0.375, 0.625]).double())


def test_average_probability_figure__compensation_flattens_softmax(make_runs) -> None:
    figure = average_probability_figure(make_runs())
    assert [trace.name for trace in figure.data] == [
        "uniform, 1/C",
        "Softmax",
        "PC Softmax",
        "Balanced Softmax",
        "PC Balanced Softmax",
        "LADE",
    ]
    uniform, raw, compensated = (trace.y for trace in figure.data[:3])
    assert list(uniform) == [0.1] * 10
    assert raw[0] > 0.2 > 0.05 > raw[-1]
    assert max(compensated) - min(compensated) < 0.03
    assert [trace.line.dash for trace in figure.data[1:]] == [
        "dash",
        "solid",
        "dash",
        "solid",
        "solid",
    ]


def test_average_probability_figure__no_runs() -> None:
    with pytest.raises(ValueError, match="runs") as error:
        average_probability_figure([])
    assert str(error.value) == "`runs` must hold at least one run, but is empty."


def test_average_probability_figure__without_priors_only_raw() -> None:
    predictions = Predictions(torch.eye(3), torch.arange(3))
    figure = average_probability_figure([ReportRun("LADE", 0, predictions)])
    assert [trace.name for trace in figure.data] == ["uniform, 1/C", "LADE"]
    assert figure.data[1].line.dash == "dash"


def test_class_counts_figure__largest_first_ties_by_id_log_axis() -> None:
    predictions = Predictions(
        torch.zeros(4, 4),
        torch.arange(4),
        source_counts=torch.tensor([5, 300, 5, 40]),
        class_names=("a", "b", "c", "<b>d</b>"),
    )
    figure = class_counts_figure(predictions)
    [bars] = figure.data
    assert list(bars.y) == [300, 40, 5, 5]
    assert list(bars.customdata) == ["b", "&lt;b&gt;d&lt;/b&gt;", "a", "c"]
    assert list(figure.layout.xaxis.ticktext) == list(bars.customdata)
    assert figure.layout.yaxis.type == "log"
    assert [(line.y0, line.y1) for line in figure.layout.shapes] == [
        (100,) * 2,
        (20,) * 2,
    ]
    assert [note.y for note in figure.layout.annotations] == [2.0, math.log10(20)]


def test_class_counts_figure__equal_names_keep_their_own_bars() -> None:
    predictions = Predictions(
        torch.zeros(2, 2),
        torch.arange(2),
        source_counts=torch.tensor([9, 3]),
        class_names=("crane", "crane"),
    )
    assert list(class_counts_figure(predictions).data[0].x) == [0, 1]


def test_class_counts_figure__long_names_are_cut_on_the_axis_only() -> None:
    name = "<em>" + "x" * 40
    predictions = Predictions(
        torch.zeros(1, 1),
        torch.tensor([0]),
        source_counts=torch.tensor([1]),
        class_names=(name,),
    )
    figure = class_counts_figure(predictions)
    assert list(figure.layout.xaxis.ticktext) == ["&lt;em&gt;xxxxxxxxx…"]
    assert list(figure.data[0].customdata) == ["&lt;em&gt;" + "x" * 40]


def test_class_counts_figure__many_classes_are_ranks() -> None:
    predictions = Predictions(
        torch.zeros(1, 100), torch.tensor([0]), source_counts=torch.arange(100) + 1
    )
    figure = class_counts_figure(predictions)
    assert figure.layout.xaxis.ticktext is None
    assert figure.data[0].customdata[0] == "class 99"


def test_class_counts_figure__unknown_counts() -> None:
    with pytest.raises(ValueError, match="source_counts") as error:
        class_counts_figure(Predictions(torch.zeros(1, 2), torch.tensor([0])))
    assert str(error.value) == (
        "`predictions` must know its source_counts to show them, but has none. "
        "Save it with the training images of each class."
    )


def test_target_shift_figure__one_line_for_each_row(make_runs) -> None:
    runs = make_runs()
    summaries = summarise_runs(runs)
    figure = target_shift_figure(summaries)
    assert len(figure.data) == 5
    softmax, pc_softmax = figure.data[:2]
    expected = [s for s in summaries if s.method == "Softmax"]
    assert list(softmax.x) == list(range(11))
    assert list(softmax.y) == [100 * s.raw_mean for s in expected]
    assert list(pc_softmax.y) == [100 * s.compensated_mean for s in expected]
    assert list(pc_softmax.error_y.array) == [100 * s.compensated_sd for s in expected]
    assert softmax.line.color == pc_softmax.line.color
    assert len({trace.line.color for trace in figure.data}) == 3
    ticks = " ".join(figure.layout.xaxis.ticktext)
    assert ticks == "50 25 10 5 2 1 2 5 10 25 50"
    places = {note.text: note.x for note in figure.layout.annotations}
    assert places == {"← forward": 2, "uniform": 5, "backward →": 8}


def test_target_shift_figure__single_run_has_no_bars() -> None:
    summaries = [
        Summary("LADE", t, 0.5, 0.0, 0.6, 0.0, 1, compensates=True)
        for t in PAPER_TARGETS
    ]
    [line] = target_shift_figure(summaries).data
    assert line.error_y.visible is False
    assert line.customdata[0] == "forward 50: 60.0"
