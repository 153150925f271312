import math

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from tailshift.metrics import brier_score, negative_log_likelihood

METRICS = [brier_score, negative_log_likelihood]


def test_brier_score__worked_example():
    """(1/4)² + (1/4)² and (1/2)² + (1/2)², averaged."""
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    assert brier_score(probs=probs, labels=torch.tensor([0, 1])) == 0.3125


def test_negative_log_likelihood__worked_example():
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    found = negative_log_likelihood(probs=probs, labels=torch.tensor([0, 1]))
    assert found == pytest.approx(-(math.log(0.75) + math.log(0.5)) / 2)


def test_brier_score__as_scikit_learn(case):
    logits, labels = case
    if logits.shape[1] == 1:
        assert brier_score(logits, labels) == 0
        return
    probs = logits.double().softmax(dim=1)
    expected = brier_score_loss(
        labels.numpy(),
        probs.numpy(),
        labels=np.arange(logits.shape[1]),
        scale_by_half=False,
    )
    assert brier_score(logits, labels) == pytest.approx(expected, abs=1e-6)
    found = brier_score(probs=probs, labels=labels)
    assert found == pytest.approx(expected, abs=1e-12)


def test_negative_log_likelihood__as_scikit_learn(case):
    logits, labels = case
    if logits.shape[1] == 1:
        assert negative_log_likelihood(logits, labels) == 0
        return
    probs = logits.double().softmax(dim=1)
    expected = log_loss(
        labels.numpy(), probs.numpy(), labels=np.arange(logits.shape[1])
    )
    assert negative_log_likelihood(logits, labels) == pytest.approx(expected, abs=1e-6)
    found = negative_log_likelihood(probs=probs, labels=labels)
    assert found == pytest.approx(expected, abs=1e-12)


def test_metrics__at_probabilities_of_0_and_1():
    probs, right, wrong = torch.eye(3), torch.arange(3), torch.tensor([1, 2, 0])
    assert brier_score(probs=probs, labels=right) == 0
    assert brier_score(probs=probs, labels=wrong) == 2
    assert negative_log_likelihood(probs=probs, labels=right) == 0
    assert negative_log_likelihood(probs=probs, labels=wrong) == math.inf
    impossible = torch.tensor([[0.0, -torch.inf]])
    assert negative_log_likelihood(impossible, torch.tensor([1])) == math.inf


def test_negative_log_likelihood__of_logits_does_not_underflow():
    logits = torch.tensor([[0.0, 500.0]])
    assert negative_log_likelihood(logits, torch.tensor([0])) == 500
    assert brier_score(logits, torch.tensor([0])) == 2


def test_negative_log_likelihood__weight_0_hides_an_infinite_one():
    found = negative_log_likelihood(
        probs=torch.eye(2), labels=torch.tensor([0, 0]), sample_weights=[1.0, 0.0]
    )
    assert found == 0


@pytest.mark.parametrize("metric", METRICS)
def test_metrics__weights_count_as_repetitions(case, metric):
    logits, labels = case
    repeats = torch.randint(0, 3, (len(labels),))
    repeats[0] = 2
    found = metric(logits, labels, sample_weights=repeats)
    expected = metric(
        logits.repeat_interleave(repeats, 0), labels.repeat_interleave(repeats)
    )
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_metrics__half_precision_is_computed_in_float32(metric):
    logits, labels = torch.randn(200, 10).half(), torch.randint(10, (200,))
    expected = metric(logits.double(), labels)
    assert metric(logits, labels) == pytest.approx(expected, abs=1e-6)
