"""Focal loss: against a loop, and where the model is sure."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift.losses import (
    FocalLoss,
    cross_entropy_loss,
    focal_log_posteriors,
    focal_loss,
)


def _reference_focal(f, y, *, gamma, weights):
    losses = []
    for i in range(len(f)):
        total = sum(math.exp(value) for value in f[i])
        p = math.exp(f[i][y[i]]) / total
        losses.append(weights[y[i]] * (1 - p) ** gamma * -math.log(p))
    return losses


def test_focal_loss__worked_example():
    """Logits log 3 and 0: p = 3/4 and 1/4, so (1/4)² log 4/3 and (3/4)² log 4."""
    logits = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]])
    losses = focal_loss(logits, torch.tensor([0, 1]), reduction="none")
    expected = torch.tensor([math.log(4 / 3) / 16, 9 / 16 * math.log(4)])
    torch.testing.assert_close(losses, expected)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 7), st.floats(0.01, 5.0)
)
def test_focal_loss__agrees_with_the_loop(seed, num_samples, num_classes, gamma):
    g = torch.Generator().manual_seed(seed)
    f = 3 * torch.randn(num_samples, num_classes, generator=g, dtype=torch.float64)
    y = torch.randint(num_classes, (num_samples,), generator=g)
    w = torch.rand(num_classes, generator=g, dtype=torch.float64)
    expected = _reference_focal(f.tolist(), y.tolist(), gamma=gamma, weights=w.tolist())
    losses = focal_loss(f, y, gamma=gamma, class_weights=w, reduction="none")
    torch.testing.assert_close(losses, f.new_tensor(expected), rtol=0, atol=1e-10)


def test_focal_loss__gamma_0_is_cross_entropy_to_the_last_bit():
    logits, labels = torch.randn(8, 5), torch.arange(8) % 5
    logits[0, 0] = 1e4  # sure and right
    logits.requires_grad_()
    loss, expected = (
        focal_loss(logits, labels, gamma=0, reduction="none"),
        cross_entropy_loss(logits, labels, reduction="none"),
    )
    assert torch.equal(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss.sum(), logits),
        torch.autograd.grad(expected.sum(), logits),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.01, 0.5, 0.99, 2.0])
@pytest.mark.parametrize("gap", [0.0, 1e-3, 20.0, 80.0, 1e4])
def test_focal_loss__gradient_is_finite_however_sure_the_model_is(gamma, gap, dtype):
    logits = torch.tensor([[gap, 0.0], [0.0, gap]], dtype=dtype, requires_grad=True)
    focal_loss(logits, torch.tensor([0, 0]), gamma=gamma).backward()
    assert logits.grad.isfinite().all()


def test_focal_loss__is_continuous_where_the_model_becomes_sure():
    """ℓ^(1+γ) is what is left near p = 1, without rounding of 1 − p."""
    logits = torch.tensor([[25.0, 0.0]], dtype=torch.float64)
    loss = focal_loss(logits, torch.tensor([0]), gamma=0.5)
    cross_entropy = cross_entropy_loss(logits, torch.tensor([0]))
    torch.testing.assert_close(loss, cross_entropy**1.5, rtol=1e-9, atol=0)


def test_focal_loss__fades_where_the_model_is_right():
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
    share = focal_loss(logits, labels, reduction="none") / cross_entropy_loss(
        logits, labels, reduction="none"
    )
    assert share[0] < 0.02
    assert share[1] > 0.7


def test_focal_loss__weights_do_not_enter_the_factor():
    """Focal from the weighted cross-entropy would be 4² times it, or so."""
    logits, labels = torch.randn(6, 3), torch.tensor([1, 1, 1, 1, 1, 1])
    torch.testing.assert_close(
        focal_loss(logits, labels, class_weights=[1.0, 4.0, 1.0]),
        4 * focal_loss(logits, labels),
    )


def test_focal_module__saves_its_weights():
    loss = FocalLoss(class_weights=[1.0, 2.0])
    assert loss.state_dict()["class_weights"].tolist() == [1.0, 2.0]
    assert FocalLoss().state_dict() == {}
    assert repr(FocalLoss(gamma=1.0)) == "FocalLoss(gamma=1.0)"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gamma": -1.0}, "`gamma` must be finite and not negative, but is -1.0."),
        (
            {"class_weights": [1.0, -2.0, 1.0]},
            "`class_weights` must be finite and not negative, but is -2 for class 1.",
        ),
        (
            {"class_weights": [1.0, 2.0]},
            "`class_weights` has 2 entries but `logits` has 3 classes.",
        ),
    ],
)
def test_focal_loss__says_what_is_wrong(settings, sentence):
    batch = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"^`") as error:
        focal_loss(*batch, **settings)
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        FocalLoss(**settings)(*batch)
    assert str(error.value) == sentence


def _g(q, gamma):
    """Return q / φ(q), by the formula."""
    phi = (1 - q) ** gamma - gamma * (1 - q) ** (gamma - 1) * q * math.log(q)
    return q / phi


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_log_posteriors__agrees_with_the_formula(gamma, dtype):
    f = 3 * torch.randn(20, 5, dtype=torch.float64)
    softmax = [[_g(q, gamma) for q in row] for row in f.softmax(1).tolist()]
    eta = torch.tensor(softmax).double()
    found = focal_log_posteriors(f.to(dtype), gamma=gamma).softmax(1).double()
    torch.testing.assert_close(found, eta / eta.sum(1, keepdim=True), atol=1e-6, rtol=0)
    sigmoid = [
        [_g(q, gamma) / (_g(q, gamma) + _g(1 - q, gamma)) for q in row]
        for row in f.sigmoid().tolist()
    ]
    found = focal_log_posteriors(f.to(dtype), gamma=gamma, form="sigmoid").exp()
    expected = torch.tensor(sigmoid).double()
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_focal_log_posteriors__keeps_the_order(form):
    f = 8 * torch.randn(200, 30)
    found = focal_log_posteriors(f, form=form)
    assert torch.equal(found.argsort(dim=1), f.argsort(dim=1))


def test_focal_log_posteriors__of_a_sure_model():
    """At 1 − q = e^−d, φ = e^−2d (1 + γ) and the distance d becomes 3d − log 3."""
    f = torch.tensor([[100.0, 0.0], [1e5, 0.0], [0.0, -torch.inf]])
    found = focal_log_posteriors(f)
    expected = torch.tensor([300 - math.log(3), 1.2e5, torch.inf])
    torch.testing.assert_close(found[:, 0] - found[:, 1], expected, atol=2, rtol=1e-4)
    assert found[:, 0].tolist() == [0.0] * 3


def test_focal_log_posteriors__of_cross_entropy_are_the_logits():
    f = torch.randn(3, 4)
    assert focal_log_posteriors(f, gamma=0) is f
    assert focal_log_posteriors(f.half()).dtype == torch.float32
