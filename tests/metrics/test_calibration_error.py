import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from tailshift.metrics import expected_calibration_error


def _reference_ece(probs, labels, num_bins, weights=None):
    """Sum over bins ((m−1)/M, m/M], 0 in the first, sample by sample."""
    weights = [1.0] * len(labels) if weights is None else weights
    bins = [[0.0, 0.0, 0.0] for _ in range(num_bins)]  # weight, hits, confidence
    for p, y, w in zip(probs.tolist(), labels.tolist(), weights, strict=True):
        confidence = max(p)
        for m in range(1, num_bins + 1):
            if (m - 1) / num_bins < confidence <= m / num_bins:
                bins[m - 1][0] += w
                bins[m - 1][1] += w * (p.index(confidence) == y)
                bins[m - 1][2] += w * confidence
    total = sum(weight for weight, _, _ in bins)
    return sum(abs(hits - confidence) for _, hits, confidence in bins) / total


def test_expected_calibration_error__worked_example():
    """Bin 16 holds two samples of confidence 0.8, one right; bin 14 one of 0.7."""
    probs = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    error = expected_calibration_error(probs=probs, labels=torch.tensor([0, 1, 1]))
    assert error == pytest.approx(2 / 3 * 0.3 + 1 / 3 * 0.3)


@pytest.mark.parametrize("num_bins", [1, 10, 15, 20])
def test_expected_calibration_error__as_a_loop(case, num_bins):
    logits, labels = case
    expected = _reference_ece(logits.double().softmax(dim=1), labels, num_bins)
    found = expected_calibration_error(logits, labels, num_bins=num_bins)
    assert found == pytest.approx(expected, abs=1e-6)


def test_expected_calibration_error__as_torchmetrics(case):
    """Off the edges: torchmetrics puts an edge into the bin above."""
    logits, labels = case
    if logits.shape[1] == 1:
        pytest.skip("torchmetrics wants two classes")
    probs = logits.softmax(dim=1)
    expected = multiclass_calibration_error(
        probs, labels, num_classes=logits.shape[1], n_bins=20, norm="l1"
    )
    for given in ({"logits": logits}, {"probs": probs}):
        found = expected_calibration_error(**given, labels=labels)
        assert found == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expected_calibration_error__on_the_edges(dtype):
    """Confidence m/M exactly, with 1 and the 1/2 of a tie among them."""
    confidence = torch.arange(10, 21, dtype=torch.float64) / 20
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    labels = torch.tensor([0, 1] * 5 + [0])
    expected = _reference_ece(probs, labels, 20)
    found = expected_calibration_error(probs=probs.to(dtype), labels=labels)
    assert found == pytest.approx(expected, abs=1e-6)


def test_expected_calibration_error__certain_and_right_or_wrong():
    probs = torch.eye(3)
    assert expected_calibration_error(probs=probs, labels=torch.arange(3)) == 0
    assert expected_calibration_error(probs=probs, labels=torch.tensor([1, 2, 0])) == 1


def test_expected_calibration_error__weights_count_as_repetitions(case):
    logits, labels = case
    repeats = torch.randint(0, 3, (len(labels),))
    repeats[0] = 2
    found = expected_calibration_error(logits, labels, sample_weights=repeats)
    expected = expected_calibration_error(
        logits.repeat_interleave(repeats, 0), labels.repeat_interleave(repeats)
    )
    assert found == pytest.approx(expected, abs=1e-9)


def test_expected_calibration_error__of_a_calibrated_source_is_near_0():
    probs = torch.rand(100_000, 3).softmax(dim=1)
    labels = torch.multinomial(probs, 1)[:, 0]
    assert expected_calibration_error(probs=probs, labels=labels) < 0.01


@pytest.mark.parametrize("num_bins", [3, 20])
def test_expected_calibration_error__equal_mass_as_numpy(num_bins):
    """Without ties the bins are the sorted samples, cut into equal parts."""
    logits, labels = torch.randn(240, 5).double(), torch.randint(5, (240,))
    confidence, answer = logits.softmax(dim=1).max(dim=1)
    order = np.argsort(confidence.numpy())
    hit = (answer == labels).double().numpy()
    expected = 0.0
    for part in np.split(order, num_bins):
        expected += abs((hit[part] - confidence.numpy()[part]).sum()) / 240
    found = expected_calibration_error(
        logits, labels, num_bins=num_bins, binning="equal_mass"
    )
    assert found == pytest.approx(expected, abs=1e-9)


def test_expected_calibration_error__equal_mass_of_degenerate_inputs(case):
    logits, labels = case
    error = expected_calibration_error(logits, labels, binning="equal_mass")
    assert 0 <= error <= 1


def test_expected_calibration_error__moving_all_logits_changes_nothing(case):
    logits, labels = case
    moved = expected_calibration_error(logits + 3, labels)
    error = expected_calibration_error(logits, labels)
    assert math.isclose(moved, error, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("weights", "exception", "message"),
    [
        (
            [1.0],
            ValueError,
            "`sample_weights` must have one entry a sample, shape (2,), "
            "but has shape (1,).",
        ),
        (
            [1.0, -2.0],
            ValueError,
            "`sample_weights` must be finite and not negative, "
            "but weight 1 (counted from 0) is -2.",
        ),
        (
            [math.nan, 1.0],
            ValueError,
            "`sample_weights` must be finite and not negative, "
            "but weight 0 (counted from 0) is nan.",
        ),
        ([0, 0], ValueError, "`sample_weights` must not be 0 for every sample."),
        (
            torch.ones(2, dtype=torch.complex64),
            TypeError,
            "`sample_weights` must be real, but are torch.complex64.",
        ),
    ],
)
def test_expected_calibration_error__refuses_weights(weights, exception, message):
    with pytest.raises(exception) as error:
        expected_calibration_error(
            torch.eye(2), torch.tensor([0, 1]), sample_weights=weights
        )
    assert str(error.value) == message


def test_expected_calibration_error__logits_and_probs_are_never_guessed():
    with pytest.raises(TypeError) as error:
        expected_calibration_error(torch.eye(2), torch.arange(2), probs=torch.eye(2))
    assert str(error.value) == "Give either `logits` or `probs`, but both came."
    with pytest.raises(ValueError, match="logits") as wrong:
        expected_calibration_error(probs=3 * torch.eye(2), labels=torch.arange(2))
    assert str(wrong.value) == (
        "`probs` must lie in [0, 1], but holds 3. Are these logits?"
    )
