import pytest
import torch

from tailshift.metrics import expected_calibration_error, reliability_diagram


def test_reliability_diagram__worked_example():
    probs = torch.tensor([[0.8, 0.2], [0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1])
    diagram = reliability_diagram(probs=probs, labels=labels, num_bins=4)
    assert diagram.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert diagram.counts.tolist() == [0, 0, 1, 2]
    assert diagram.shares.tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3])
    nan = float("nan")
    assert diagram.confidence.tolist() == pytest.approx(
        [nan, nan, 0.6, 0.85], nan_ok=True
    )
    assert diagram.accuracy.tolist() == pytest.approx([nan, nan, 1, 0.5], nan_ok=True)


@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_reliability_diagram__its_error_is_the_metric(case, binning, is_weighted):
    logits, labels = case
    settings = {"binning": binning, "num_bins": 10}
    if is_weighted:
        settings["sample_weights"] = torch.rand(len(labels)) + 0.01
    diagram = reliability_diagram(logits, labels, **settings)
    expected = expected_calibration_error(logits, labels, **settings)
    assert diagram.expected_calibration_error == pytest.approx(expected, abs=1e-9)
    assert diagram.counts.sum() == len(labels)
    assert diagram.shares.sum().item() == pytest.approx(1)
    assert (diagram.edges.diff() >= 0).all()


def test_reliability_diagram__samples_of_weight_0_are_not_counted():
    diagram = reliability_diagram(
        probs=torch.eye(2), labels=torch.tensor([0, 0]), sample_weights=[1.0, 0.0]
    )
    assert diagram.counts.sum() == 1
    assert diagram.expected_calibration_error == 0
