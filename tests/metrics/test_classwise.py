import pytest
import torch

from tailshift.metrics import classwise, classwise_calibration_error, sample_scores


def _reference_classwise(probs, labels, num_bins):
    """Per class, bin p_j over all samples, one by one."""
    num_samples, num_classes = probs.shape
    probs, labels = probs.tolist(), labels.tolist()
    total = 0.0
    for j in range(num_classes):
        for m in range(1, num_bins + 1):
            gap = 0.0
            for i in range(num_samples):
                p = probs[i][j]
                first = m == 1 and p == 0
                if first or (m - 1) / num_bins < p <= m / num_bins:
                    gap += p - (labels[i] == j)
            total += abs(gap)
    return total / num_samples / num_classes


def test_classwise_calibration_error__worked_example():
    """|3/4 − 0.8| for class 0 and |1/4 − 0.2| for class 1."""
    probs = torch.tensor([[0.8, 0.2]], dtype=torch.float64).repeat(4, 1)
    labels = torch.tensor([0, 0, 0, 1])
    error = classwise_calibration_error(probs=probs, labels=labels)
    assert error == pytest.approx(0.05)


@pytest.mark.parametrize("num_bins", [1, 5, 20])
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_classwise_calibration_error__as_a_loop(case, num_bins, chunk, monkeypatch):
    monkeypatch.setattr(sample_scores, "CHUNK", chunk)
    logits, labels = case[0][:40], case[1][:40]
    probs = logits.double().softmax(dim=1)
    expected = _reference_classwise(probs, labels, num_bins)
    found = classwise_calibration_error(logits, labels, num_bins=num_bins)
    assert found == pytest.approx(expected, abs=1e-6)
    found = classwise_calibration_error(probs=probs, labels=labels, num_bins=num_bins)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classwise_calibration_error__on_the_edges(dtype):
    p = torch.arange(21, dtype=torch.float64) / 20  # 0 and 1 among them
    probs = torch.stack([p, p.flip(0)], dim=1)
    labels = torch.tensor([0, 1, 1] * 7)
    expected = _reference_classwise(probs, labels, 20)
    found = classwise_calibration_error(probs=probs.to(dtype), labels=labels)
    assert found == pytest.approx(expected, abs=1e-6)


def test_classwise_calibration_error__certain_and_right_or_wrong():
    probs = torch.eye(4)
    assert classwise_calibration_error(probs=probs, labels=torch.arange(4)) == 0
    wrong = torch.tensor([1, 2, 3, 0])
    assert classwise_calibration_error(probs=probs, labels=wrong) == 2 / 4


def test_classwise_calibration_error__weights_count_as_repetitions(case):
    logits, labels = case
    repeats = torch.randint(0, 3, (len(labels),))
    repeats[0] = 2
    for binning in ("equal_width", "equal_mass"):
        found = classwise_calibration_error(
            logits, labels, sample_weights=repeats, binning=binning
        )
        expected = classwise_calibration_error(
            logits.repeat_interleave(repeats, 0),
            labels.repeat_interleave(repeats),
            binning=binning,
        )
        assert found == pytest.approx(expected, abs=1e-6)


def test_classwise_calibration_error__permuting_classes_changes_nothing(case):
    logits, labels = case
    order = torch.randperm(logits.shape[1])
    found = classwise_calibration_error(logits[:, order], order.argsort()[labels])
    assert found == pytest.approx(classwise_calibration_error(logits, labels), abs=1e-6)


def test_classwise_gaps__several_weightings_at_once():
    logits, labels = torch.randn(80, 30).double() * 3, torch.randint(30, (80,))
    weights = torch.rand(5, 80).double()
    gaps = classwise.ClasswiseGaps(5, 20, 30)
    for rows, _, p in sample_scores.score_chunks(logits, labels):
        gaps.add(p, labels[rows], weights[:, rows])
    for w, error in zip(weights, gaps.errors().tolist(), strict=True):
        expected = classwise_calibration_error(logits, labels, sample_weights=w)
        assert error == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("columns", [1, 100, 1 << 22])
def test_classwise_calibration_error__equal_mass_as_a_loop(columns, monkeypatch):
    """Without ties, each column's sorted samples are cut into equal parts."""
    monkeypatch.setattr(classwise, "_COLUMNS", columns)
    logits, labels = torch.randn(60, 8).double(), torch.randint(8, (60,))
    probs = logits.softmax(dim=1)
    expected = 0.0
    for j in range(8):
        gaps = (probs[:, j] - (labels == j).double())[probs[:, j].argsort()]
        expected += sum(part.sum().abs().item() for part in gaps.split(20)) / 60 / 8
    found = classwise_calibration_error(
        logits, labels, num_bins=3, binning="equal_mass"
    )
    assert found == pytest.approx(expected, abs=1e-9)
