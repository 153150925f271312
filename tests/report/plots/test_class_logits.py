"""Figure 3: how each class's logit is distributed over its own and other samples."""

import math
from statistics import fmean, pstdev

import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report import ReportRun
from tailshift.report.plots import class_logits, class_logits_plot


def _reference(runs: list[Predictions], c: int) -> tuple[float, float, float, float]:
    own, others = [], []
    for predictions in runs:
        rows = zip(
            predictions.logits.tolist(), predictions.labels.tolist(), strict=True
        )
        for f, y in rows:
            (own if y == c else others).append(f[c])
    return fmean(own), pstdev(own), fmean(others), pstdev(others)


def test_class_logits__agree_with_loops(make_runs) -> None:
    of_seeds = [run.predictions for run in make_runs(("LADE",), 2)]
    found = class_logits(of_seeds)
    for c in range(10):
        ours = (
            found.positive_mean[c].item(),
            found.positive_sd[c].item(),
            found.negative_mean[c].item(),
            found.negative_sd[c].item(),
        )
        assert ours == pytest.approx(_reference(of_seeds, c), rel=1e-6)


def test_class_logits__class_without_samples_and_impossible_ones() -> None:
    f = torch.tensor([[2.0, -torch.inf, 0.0], [4.0, 1.0, -torch.inf]])
    found = class_logits([Predictions(f, torch.tensor([0, 1]))])
    assert found.positive_mean[:2].tolist() == [2.0, 1.0]
    assert math.isnan(found.positive_mean[2])
    assert found.negative_mean.tolist() == [4.0, -math.inf, -math.inf]
    class_logits_plot([ReportRun("X", 0, Predictions(f, torch.tensor([0, 1])))])


def test_plot__bands_and_log_c(make_runs) -> None:
    runs = make_runs(("Softmax", "LADE"), 1)
    figure = class_logits_plot(runs)
    assert [axes.get_title() for axes in figure.axes] == ["Softmax", "LADE"]
    positive, negative, level = figure.axes[1].lines
    found = class_logits([runs[1].predictions])
    assert positive.get_ydata().tolist() == found.positive_mean.tolist()
    assert negative.get_ydata().tolist() == found.negative_mean.tolist()
    assert list(level.get_ydata()) == [math.log(10)] * 2
    band = figure.axes[1].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(
        (found.positive_mean + found.positive_sd).max().item()
    )
    [legend] = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["positive samples", "negative samples", "log C"]
