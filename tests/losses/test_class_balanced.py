"""Class-balanced weights and the losses with them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift.losses import (
    ClassBalancedCrossEntropyLoss,
    ClassBalancedFocalLoss,
    class_balanced_cross_entropy_loss,
    class_balanced_focal_loss,
    class_balanced_weights,
    cross_entropy_loss,
    focal_loss,
    weighted_cross_entropy_loss,
)


def _reference_weights(counts, beta):
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    return [len(counts) * value / sum(raw) for value in raw]


def _reference_focal(f, y, weights, *, gamma, form):
    losses = []
    for i in range(len(f)):
        if form == "softmax":
            total = sum(math.exp(value) for value in f[i])
            q = [math.exp(f[i][y[i]]) / total]
        else:
            q = [1 / (1 + math.exp(-value)) for value in f[i]]
            q = [q[c] if c == y[i] else 1 - q[c] for c in range(len(q))]
        terms = [(1 - value) ** gamma * -math.log(value) for value in q]
        losses.append(weights[y[i]] * sum(terms))
    return losses


def test_class_balanced_weights__worked_example():
    """β = ½, n = (1, 2): 0.5/0.5 = 1 and 0.5/0.75 = 2/3, scaled to 6/5 and 4/5."""
    weights = class_balanced_weights([1, 2], beta=0.5)
    torch.testing.assert_close(weights, torch.tensor([1.2, 0.8]).double())


@pytest.mark.parametrize("beta", [0.3, 0.9, 0.999, 0.9999])
def test_class_balanced_weights__agree_with_the_formula(beta):
    counts = [5000, 477, 100, 20, 5, 1]
    expected = torch.tensor(_reference_weights(counts, beta), dtype=torch.float64)
    weights = class_balanced_weights(counts, beta=beta)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)
    assert weights.sum().item() == pytest.approx(6)


@pytest.mark.parametrize("beta", [0.0, 1e-300, 1e-17, 1e-12])
def test_class_balanced_weights__are_uniform_towards_beta_0(beta):
    weights = class_balanced_weights([500, 20, 1], beta=beta)
    torch.testing.assert_close(weights, torch.ones(3).double(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("beta", [1 - 1e-12, 1 - 1e-15, 1 - 2**-53, 1.0])
def test_class_balanced_weights__are_inverse_counts_towards_beta_1(beta):
    counts = torch.tensor([500, 20, 1])
    expected = 3 / counts.double() / (1 / counts.double()).sum()
    weights = class_balanced_weights(counts, beta=beta)
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 7), st.floats(0.0, 4.0))
def test_class_balanced_focal_loss__agrees_with_the_loop(
    form, seed, num_samples, num_classes, gamma
):
    g = torch.Generator().manual_seed(seed)
    f = 3 * torch.randn(num_samples, num_classes, generator=g, dtype=torch.float64)
    y = torch.randint(num_classes, (num_samples,), generator=g)
    counts = torch.randint(1, 1000, (num_classes,), generator=g)
    weights = _reference_weights(counts.tolist(), 0.99)
    expected = _reference_focal(f.tolist(), y.tolist(), weights, gamma=gamma, form=form)
    losses = class_balanced_focal_loss(
        f, y, counts, beta=0.99, gamma=gamma, form=form, reduction="none"
    )
    torch.testing.assert_close(losses, f.new_tensor(expected), rtol=0, atol=1e-10)


def test_class_balanced_focal_loss__sigmoid_worked_example():
    """Logits 0, γ = 1: each of C yes-no questions costs ½ log 2; weights are 1."""
    loss = class_balanced_focal_loss(
        torch.zeros(2, 4), torch.tensor([0, 3]), [7] * 4, gamma=1.0, form="sigmoid"
    )
    assert loss.item() == pytest.approx(4 * 0.5 * math.log(2))


def test_class_balanced_focal_loss__equal_counts_make_it_focal():
    logits, labels = torch.randn(8, 5, dtype=torch.float64), torch.arange(8) % 5
    torch.testing.assert_close(
        class_balanced_focal_loss(logits, labels, [30] * 5), focal_loss(logits, labels)
    )


def test_class_balanced_focal_loss__gamma_0_is_weighted_cross_entropy():
    logits, labels = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 3
    counts = [500, 20, 5]
    expected = class_balanced_cross_entropy_loss(logits, labels, counts)
    torch.testing.assert_close(
        class_balanced_focal_loss(logits, labels, counts, gamma=0), expected
    )
    weights = class_balanced_weights(counts)
    torch.testing.assert_close(
        weighted_cross_entropy_loss(logits, labels, weights), expected
    )


def test_class_balanced_cross_entropy_loss__beta_0_is_cross_entropy():
    logits, labels = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 3
    torch.testing.assert_close(
        class_balanced_cross_entropy_loss(logits, labels, [500, 20, 5], beta=0),
        cross_entropy_loss(logits, labels),
    )


@pytest.mark.parametrize("gamma", [0.3, 2.0])
@pytest.mark.parametrize("gap", [0.0, 30.0, 100.0, 1e4])
def test_class_balanced_focal_loss__sigmoid_gradient_is_finite(gamma, gap):
    logits = torch.tensor([[gap, -gap], [-gap, gap]], requires_grad=True)
    class_balanced_focal_loss(
        logits, torch.tensor([0, 0]), [9, 1], gamma=gamma, form="sigmoid"
    ).backward()
    assert logits.grad.isfinite().all()


def test_class_balanced_modules__say_what_they_were_made_with():
    assert repr(ClassBalancedFocalLoss([9, 1], gamma=1.0)) == (
        "ClassBalancedFocalLoss(num_classes=2, beta=0.9999, gamma=1.0, form='softmax')"
    )
    assert repr(ClassBalancedCrossEntropyLoss([9, 1], beta=0.9)) == (
        "ClassBalancedCrossEntropyLoss(num_classes=2, beta=0.9)"
    )


@pytest.mark.parametrize(
    ("counts", "settings", "sentence"),
    [
        (
            [5, 0, 2],
            {},
            "`class_counts` must be positive for every class, but is 0 for class 1 "
            "(3 classes). Drop it or give it a sample.",
        ),
        (
            [0, 3, 0],
            {},
            "`class_counts` must be positive for every class, but is 0 for classes "
            "0 and 2 (3 classes). Drop them or give them samples.",
        ),
        ([5, 2], {}, "`class_counts` has 2 entries but `logits` has 3 classes."),
        ([5, 2, 1], {"beta": 1.5}, "`beta` must lie in [0, 1], but is 1.5."),
        ([5, 2, 1], {"beta": math.nan}, "`beta` must lie in [0, 1], but is nan."),
    ],
)
@pytest.mark.parametrize(
    ("function", "module"),
    [
        (class_balanced_focal_loss, ClassBalancedFocalLoss),
        (class_balanced_cross_entropy_loss, ClassBalancedCrossEntropyLoss),
    ],
)
def test_class_balanced_losses__say_what_is_wrong(
    counts, settings, sentence, function, module
):
    batch = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"^`") as error:
        function(*batch, counts, **settings)
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        module(counts, **settings)(*batch)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gamma": -0.5}, "`gamma` must be finite and not negative, but is -0.5."),
        (
            {"form": "sigmoids"},
            "`form` must be 'softmax' or 'sigmoid', but is 'sigmoids'.",
        ),
    ],
)
def test_class_balanced_focal_loss__says_what_is_wrong(settings, sentence):
    with pytest.raises(ValueError, match=r"^`") as error:
        class_balanced_focal_loss(
            torch.zeros(1, 2), torch.tensor([0]), [5, 2], **settings
        )
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        ClassBalancedFocalLoss([5, 2], **settings)
    assert str(error.value) == sentence
