import math

import numpy as np
import pytest
import torch

from tailshift import metrics
from tailshift.metrics import bootstrap, bootstrap_intervals

FUNCTIONS = {
    "accuracy": metrics.accuracy,
    "ece": metrics.expected_calibration_error,
    "classwise_ece": metrics.classwise_calibration_error,
    "brier": metrics.brier_score,
    "nll": metrics.negative_log_likelihood,
}


def test_bootstrap_intervals__values_are_the_metrics(case):
    logits, labels = case
    found = bootstrap_intervals(logits, labels, repeats=5, classwise=True)
    assert list(found) == list(FUNCTIONS)
    for name, function in FUNCTIONS.items():
        expected = function(logits, labels)
        assert found[name].value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("block", [1, 500, 1 << 22])
def test_bootstrap_intervals__ends_as_a_loop(block, monkeypatch):
    """Each repeat computed by the metric itself, on the samples that were drawn."""
    monkeypatch.setattr(bootstrap, "BLOCK", block)
    logits, labels = 2 * torch.randn(60, 4).double(), torch.randint(4, (60,))
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randint(60, (60,), generator=generator) for _ in range(40)]
    found = bootstrap_intervals(
        logits, labels, repeats=40, level=0.8, seed=3, classwise=True
    )
    for name, function in FUNCTIONS.items():
        values = [function(logits[rows], labels[rows]) for rows in drawn]
        low, high = np.quantile(values, (0.1, 0.9), method="inverted_cdf")
        assert found[name].low == pytest.approx(low, abs=1e-6)
        assert found[name].high == pytest.approx(high, abs=1e-6)


def test_bootstrap_intervals__width_is_that_of_the_normal_law():
    labels = torch.arange(2000) % 2
    logits = torch.eye(2)[torch.zeros_like(labels)]  # right half of the time
    interval = bootstrap_intervals(logits, labels)["accuracy"]
    assert interval.high - interval.low == pytest.approx(
        2 * 1.96 * math.sqrt(0.25 / 2000), rel=0.1
    )


def test_bootstrap_intervals__an_impossible_label():
    """One of two samples is infinitely wrong; three in four repeats hold it."""
    found = bootstrap_intervals(
        probs=torch.eye(2), labels=torch.tensor([0, 0]), level=0.9
    )
    nll = found["nll"]
    assert (nll.value, nll.low, nll.high) == (math.inf, 0, math.inf)


def test_bootstrap_intervals__the_classwise_error_only_where_asked():
    found = bootstrap_intervals(torch.eye(2), torch.arange(2), repeats=2)
    assert list(found) == ["accuracy", "ece", "brier", "nll"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repeats": 0}, "`repeats` must be at least 1, but is 0."),
        ({"level": 1.0}, "`level` must lie between 0 and 1, but is 1."),
    ],
)
def test_bootstrap_intervals__refuses_with_a_sentence(settings, message):
    with pytest.raises(ValueError, match="must") as error:
        bootstrap_intervals(torch.eye(2), torch.arange(2), **settings)
    assert str(error.value) == message
