"""Average probability of each class over a balanced test set."""

import math

import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report.curves import average_probability


def _reference_average_probability(
    predictions: Predictions, compensated: bool
) -> list[float]:
    """The paper's Figure 2, one sample and one class at a time; balanced tests only."""
    num_samples, num_classes = predictions.logits.shape
    totals = [0.0] * num_classes
    for f in predictions.logits.tolist():
        if compensated:
            assert predictions.logit_prior is not None
            p = predictions.logit_prior.tolist()
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
