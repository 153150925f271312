"""What each class gains and loses, against counting by hand."""

import math

import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report import ReportRun
from tailshift.report.plots import accuracy_change_plot, accuracy_changes
from tailshift.report.series import answers


def _reference_change(predictions: Predictions, target: str) -> list[float]:
    changes = []
    for c in range(predictions.num_classes):
        right = []
        for way in (False, True):
            scores = answers(predictions, target, compensated=way).tolist()
            own = [
                f.index(max(f)) == c
                for f, y in zip(scores, predictions.labels.tolist(), strict=True)
                if y == c
            ]
            right.append(sum(own) / len(own))
        changes.append(right[1] - right[0])
    return changes


@pytest.mark.parametrize("target", ["uniform", "backward:50"])
def test_accuracy_changes__agree_with_loops(make_runs, target: str) -> None:
    runs = make_runs(("Softmax",), 2)
    [found] = accuracy_changes(runs, target)
    changes = [_reference_change(run.predictions, target) for run in runs]
    expected = [sum(values) / 2 for values in zip(*changes, strict=True)]
    assert found.change.tolist() == pytest.approx(expected)


def test_accuracy_changes__leave_out_what_does_not_change(make_runs) -> None:
    assert [c.method for c in accuracy_changes(make_runs())] == ["Softmax"]
    assert len(accuracy_changes(make_runs(), "backward:50")) == 3
    no_prior = Predictions(torch.eye(2), torch.arange(2))
    assert accuracy_changes([ReportRun("X", 0, no_prior)]) == []


def test_by_group__means_over_classes() -> None:
    f = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.5, 0.0]])
    counts = torch.tensor([300, 50, 50])
    predictions = Predictions(f, torch.tensor([0, 1]), counts, counts / 400)
    [found] = accuracy_changes([ReportRun("X", 0, predictions)])
    # class 0: 2 − log .75 against 1 − log .125 turns to class 1; class 2 has no sample
    assert found.change[:2].tolist() == [-1.0, 1.0]
    groups = found.by_group(counts)
    assert (groups["many"], groups["medium"]) == (-1.0, 1.0)
    assert math.isnan(groups["few"])
    figure = accuracy_change_plot([ReportRun("X", 0, predictions)])
    [axes] = figure.axes
    assert axes.get_title().splitlines()[1] == "many −100.0, medium +100.0"


def test_plot__bars_by_training_count(make_runs) -> None:
    runs = make_runs(("Softmax",), 1)
    [axes] = accuracy_change_plot(runs).axes
    [found] = accuracy_changes(runs)
    [bars] = axes.containers
    heights = [bar.get_height() for bar in bars]
    assert heights == pytest.approx((100 * found.change).tolist())  # ids are the order
    assert axes.get_title().startswith("Softmax, compensated to uniform\nmany −")


def test_plot__nothing_to_show(make_runs) -> None:
    with pytest.raises(ValueError, match="none does") as error:
        accuracy_change_plot(make_runs(("LADE",), 1))
    assert str(error.value) == (
        "`runs` must change with compensation to be compared, but none does on the "
        "target 'uniform'. Use another target."
    )
