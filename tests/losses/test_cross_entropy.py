"""Cross-entropy, plain and weighted, and its mean."""

import math

import pytest
import torch

from tailshift.losses import (
    WeightedCrossEntropyLoss,
    cross_entropy_loss,
    weighted_cross_entropy_loss,
)


def test_cross_entropy_loss__worked_example():
    """Logits log 3 and log 1: p = (3/4, 1/4), so the losses are log 4/3 and log 4."""
    logits = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]])
    losses = cross_entropy_loss(logits, torch.tensor([0, 1]), reduction="none")
    torch.testing.assert_close(losses, torch.tensor([4 / 3, 4.0]).log())


def test_cross_entropy_loss__ignores_a_constant():
    logits = torch.randn(5, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0])
    torch.testing.assert_close(
        cross_entropy_loss(logits + 7, labels), cross_entropy_loss(logits, labels)
    )


def _reference_weighted(f, y, w):
    total = 0.0
    for i in range(len(f)):
        normaliser = sum(math.exp(value) for value in f[i])
        total += w[y[i]] * -math.log(math.exp(f[i][y[i]]) / normaliser)
    return total / len(f)


def test_weighted_cross_entropy_loss__worked_example():
    """Equal logits of two classes: (3 log 2 + 1 log 2) / 2, not / (3 + 1)."""
    loss = weighted_cross_entropy_loss(
        torch.zeros(2, 2), torch.tensor([0, 1]), [3.0, 1.0]
    )
    assert loss.item() == pytest.approx(2 * math.log(2))


def test_weighted_cross_entropy_loss__agrees_with_the_loop():
    f, y = 3 * torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 4
    w = torch.rand(4, dtype=torch.float64)
    loss = weighted_cross_entropy_loss(f, y, w)
    expected = _reference_weighted(f.tolist(), y.tolist(), w.tolist())
    assert loss.item() == pytest.approx(expected, abs=1e-10)


def test_weighted_cross_entropy_loss__equal_weights_are_cross_entropy():
    logits, labels = torch.randn(8, 5), torch.arange(8) % 5
    assert weighted_cross_entropy_loss(logits, labels, [1.0] * 5) == (
        cross_entropy_loss(logits, labels, reduction="none").mean()
    )


def test_weighted_cross_entropy_loss__a_sample_counts_alike_in_every_batch():
    """Halves of a batch average to the whole: a mean by weights would not."""
    logits, labels = torch.randn(8, 3).double(), torch.tensor([0, 0, 0, 0, 1, 2, 2, 2])
    weights = [0.1, 1.0, 5.0]
    halves = [
        weighted_cross_entropy_loss(logits[rows], labels[rows], weights)
        for rows in (slice(4), slice(4, 8))
    ]
    torch.testing.assert_close(
        sum(halves) / 2, weighted_cross_entropy_loss(logits, labels, weights)
    )


def test_weighted_cross_entropy_module__holds_a_copy_of_its_weights():
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    loss = WeightedCrossEntropyLoss(weights)
    weights.zero_()
    assert loss.state_dict()["class_weights"].tolist() == [1.0, 2.0]
    assert repr(loss) == "WeightedCrossEntropyLoss(num_classes=2)"


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([1.0, 2.0], "`class_weights` has 2 entries but `logits` has 3 classes."),
        (
            [1.0, 2.0, math.inf],
            "`class_weights` must be finite and not negative, but is inf for class 2.",
        ),
    ],
)
def test_weighted_cross_entropy_loss__says_what_is_wrong(weights, sentence):
    batch = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"^`") as error:
        weighted_cross_entropy_loss(*batch, weights)
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        WeightedCrossEntropyLoss(weights)(*batch)
    assert str(error.value) == sentence
