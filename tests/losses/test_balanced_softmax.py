"""Balanced softmax and LADE-CE, which is the same function."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift import priors
from tailshift.losses import balanced_softmax_loss, cross_entropy_loss, lade_ce_loss
from tailshift.losses.balanced_softmax import BalancedSoftmaxLoss


def _reference_balanced_softmax(f, y, p_s):
    losses = []
    for i in range(len(f)):
        total = sum(p_s[c] * math.exp(f[i][c]) for c in range(len(p_s)))
        losses.append(-math.log(p_s[y[i]] * math.exp(f[i][y[i]]) / total))
    return losses


@pytest.mark.parametrize("loss", [balanced_softmax_loss, lade_ce_loss])
def test_balanced_softmax_loss__worked_example(loss):
    """Equal logits leave the prior alone: the losses are −log 0.8 and −log 0.2."""
    losses = loss(torch.zeros(2, 2), torch.tensor([0, 1]), [0.8, 0.2], reduction="none")
    torch.testing.assert_close(losses, -torch.tensor([0.8, 0.2]).log())


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 7))
def test_balanced_softmax_loss__agrees_with_the_loop(seed, num_samples, num_classes):
    g = torch.Generator().manual_seed(seed)
    f = 3 * torch.randn(num_samples, num_classes, generator=g, dtype=torch.float64)
    y = torch.randint(num_classes, (num_samples,), generator=g)
    p_s = torch.rand(num_classes, generator=g, dtype=torch.float64) + 0.01
    p_s /= p_s.sum()
    expected = _reference_balanced_softmax(f.tolist(), y.tolist(), p_s.tolist())
    losses = balanced_softmax_loss(f, y, p_s, reduction="none")
    torch.testing.assert_close(losses, f.new_tensor(expected), rtol=0, atol=1e-10)


def test_balanced_softmax_loss__uniform_prior_is_cross_entropy():
    logits, labels = torch.randn(8, 5, dtype=torch.float64), torch.arange(8) % 5
    torch.testing.assert_close(
        balanced_softmax_loss(logits, labels, priors.uniform(5)),
        cross_entropy_loss(logits, labels),
    )


def test_balanced_softmax_loss__ignores_a_constant_and_the_order_of_classes():
    logits, labels = torch.randn(8, 5, dtype=torch.float64), torch.arange(8) % 5
    p_s = priors.from_counts([50, 20, 10, 5, 1])
    expected = balanced_softmax_loss(logits, labels, p_s)
    torch.testing.assert_close(balanced_softmax_loss(logits + 9, labels, p_s), expected)
    order = torch.tensor([3, 0, 4, 1, 2])
    relabelled = order.argsort()[labels]
    torch.testing.assert_close(
        balanced_softmax_loss(logits[:, order], relabelled, p_s[order]), expected
    )


def test_balanced_softmax_loss__a_thousand_long_tailed_classes():
    p_s = priors.from_counts(priors.long_tailed_counts(10**6, 10**6, 1000))
    logits = torch.zeros(1, 1000)
    loss = balanced_softmax_loss(logits, torch.tensor([999]), p_s)
    torch.testing.assert_close(loss, -p_s[999].log().float())


@pytest.mark.parametrize("loss", [balanced_softmax_loss, lade_ce_loss])
def test_balanced_softmax_loss__refuses_a_prior_of_another_size(loss):
    with pytest.raises(ValueError, match=r"^`") as error:
        loss(torch.zeros(2, 3), torch.tensor([0, 1]), [0.8, 0.2])
    assert str(error.value) == (
        "`source_prior` has 2 entries but `logits` has 3 classes."
    )


def test_balanced_softmax_module__refuses_logits_of_another_size():
    with pytest.raises(ValueError, match=r"^`") as error:
        BalancedSoftmaxLoss([0.8, 0.2])(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert str(error.value) == (
        "`source_prior` has 2 entries but `logits` has 3 classes."
    )
