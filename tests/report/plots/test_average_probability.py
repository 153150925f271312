"""Figure 2: softmax leans to the head, and compensation takes that away."""

import math

import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report import ReportRun
from tailshift.report.plots import average_probability_plot, probability_curves


def _reference_curve(predictions: Predictions, compensated: bool) -> list[float]:
    """One sample and one class at a time, the most frequent class first."""
    totals = [0.0] * predictions.num_classes
    for f in predictions.logits.tolist():
        if compensated:
            prior = predictions.logit_prior.tolist()
            f = [value - math.log(p) for value, p in zip(f, prior, strict=True)]
        e = [math.exp(value - max(f)) for value in f]
        for c, value in enumerate(e):
            totals[c] += value / sum(e) / len(predictions.logits)
    counts = predictions.source_counts.tolist()
    order = sorted(range(len(counts)), key=lambda c: -counts[c])
    return [totals[c] for c in order]


def test_probability_curves__agree_with_loops_over_seeds(make_runs) -> None:
    runs = make_runs(("Softmax",), 2)
    for curve in probability_curves(runs):
        found = [_reference_curve(r.predictions, curve.is_compensated) for r in runs]
        expected = [sum(values) / 2 for values in zip(*found, strict=True)]
        assert curve.mean.tolist() == pytest.approx(expected)


def test_probability_curves__are_ordered_by_training_count() -> None:
    f = torch.tensor([[0.0, 1.0, 2.0]]).repeat(3, 1)
    counts = torch.tensor([5, 50, 500])
    predictions = Predictions(f, torch.arange(3), counts)
    [curve] = probability_curves([ReportRun("X", 0, predictions)])
    assert curve.mean.tolist() == sorted(curve.mean.tolist(), reverse=True)
    assert curve.ends() == (curve.mean[0].item(), curve.mean[2].item())


def test_plot__raw_dashed_compensated_solid_and_one_over_c(make_runs) -> None:
    figure = average_probability_plot(make_runs())
    softmax, balanced, lade = figure.axes
    raw, compensated, level = softmax.lines
    labels = [line.get_label() for line in softmax.lines]
    assert labels == ["Softmax", "PC Softmax", "1/C"]
    assert raw.get_ydata()[0] > 20 > 5 > raw.get_ydata()[-1]
    assert max(compensated.get_ydata()) - min(compensated.get_ydata()) < 3
    assert list(level.get_ydata()) == [10.0, 10.0]
    assert (raw.get_linestyle(), compensated.get_linestyle()) == ("--", "-")
    assert [line.get_label() for line in lade.lines] == ["LADE", "1/C"]
    assert balanced.lines[0].get_color() == "#0072B2"
