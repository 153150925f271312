"""Figures 4 and 6: bins of confidence and their accuracy, under a target."""

import math

import pytest
import torch

from tailshift.metrics import expected_calibration_error
from tailshift.predictions import Predictions
from tailshift.report import ReportRun
from tailshift.report.plots import reliabilities, reliability_plot
from tailshift.report.series import answers, weigh_samples

BINS = 20


def _reference_bins(runs, target: str, compensated: bool) -> list[tuple[float, ...]]:
    """Return weight, confidence and accuracy of each bin, one sample at a time."""
    sums = [[0.0, 0.0, 0.0] for _ in range(BINS)]
    for run in runs:
        p = run.predictions
        weights = weigh_samples(p, target).weights[0].tolist()
        probs = answers(p, target, compensated=compensated).softmax(-1).tolist()
        for row, y, w in zip(probs, p.labels.tolist(), weights, strict=True):
            top = max(row)
            found = sums[max(math.ceil(top * BINS) - 1, 0)]
            found[0] += w
            found[1] += w * top
            found[2] += w * (row.index(top) == y)
    total = sum(found[0] for found in sums)
    return [
        (w / total, c / w if w else math.nan, a / w if w else math.nan)
        for w, c, a in sums
    ]


@pytest.mark.parametrize("target", ["uniform", "backward:10"])
def test_reliabilities__agree_with_loops_over_seeds(make_runs, target: str) -> None:
    runs = make_runs(("Softmax",), 3)
    raw, compensated = reliabilities(runs, target)
    assert (raw.name, compensated.name) == ("Softmax", "PC Softmax")
    for found, way in ((raw, False), (compensated, True)):
        bins = zip(
            found.shares.tolist(),
            found.confidence.tolist(),
            found.accuracy.tolist(),
            strict=True,
        )
        for ours, theirs in zip(bins, _reference_bins(runs, target, way), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-9, nan_ok=True)


def test_reliabilities__error_is_the_mean_over_seeds(make_runs) -> None:
    runs = make_runs(("LADE",), 2)
    [found] = reliabilities(runs)
    errors = [
        expected_calibration_error(r.predictions.logits, r.predictions.labels)
        for r in runs
    ]
    assert found.ece == pytest.approx(sum(errors) / 2, rel=1e-6)


def test_plot__bars_gaps_shares_and_the_error(make_runs) -> None:
    runs = make_runs(("Softmax", "LADE"), 1)
    found = reliabilities(runs)
    figure = reliability_plot(runs)
    assert [axes.get_title() for axes in figure.axes] == [r.name for r in found]
    for axes, reliability in zip(figure.axes, found, strict=True):
        accuracy, gaps, shares = axes.containers
        heights = [bar.get_height() for bar in accuracy]
        assert heights == pytest.approx(reliability.accuracy.tolist(), nan_ok=True)
        tops = [bar.get_y() + bar.get_height() for bar in gaps]
        assert tops == pytest.approx(reliability.confidence.tolist(), nan_ok=True)
        assert sum(bar.get_height() for bar in shares) == pytest.approx(1)
        assert axes.texts[0].get_text() == f"ECE {reliability.ece:.3f}"


def test_plot__one_sample() -> None:
    predictions = Predictions(torch.tensor([[9.0, 0.0]]), torch.tensor([0]))
    figure = reliability_plot([ReportRun("X", 0, predictions)])
    assert figure.axes[0].texts[0].get_text() == "ECE 0.000"
