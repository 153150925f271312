"""The logit-adjusted loss between cross-entropy and Balanced Softmax."""

import math

import pytest
import torch

from tailshift import priors
from tailshift.losses import (
    LogitAdjustedLoss,
    balanced_softmax_loss,
    cross_entropy_loss,
    logit_adjusted_loss,
)


def _reference_logit_adjusted(f, y, p_s, tau):
    losses = []
    for i in range(len(f)):
        terms = [p_s[c] ** tau * math.exp(f[i][c]) for c in range(len(p_s))]
        losses.append(-math.log(terms[y[i]] / sum(terms)))
    return losses


def test_logit_adjusted_loss__worked_example():
    """Equal logits, τ = 2, p_s = (¾, ¼): shares 9 : 1, so −log 0.9 and −log 0.1."""
    losses = logit_adjusted_loss(
        torch.zeros(2, 2), torch.tensor([0, 1]), [0.75, 0.25], tau=2, reduction="none"
    )
    torch.testing.assert_close(losses, -torch.tensor([0.9, 0.1]).log())


@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0, 2.5])
def test_logit_adjusted_loss__agrees_with_the_loop(tau):
    f, y = 3 * torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 4
    p_s = priors.from_counts([500, 60, 7, 1])
    losses = logit_adjusted_loss(f, y, p_s, tau=tau, reduction="none")
    expected = _reference_logit_adjusted(f.tolist(), y.tolist(), p_s.tolist(), tau)
    torch.testing.assert_close(losses, f.new_tensor(expected), rtol=0, atol=1e-10)


def test_logit_adjusted_loss__tau_1_is_balanced_softmax_and_tau_0_cross_entropy():
    logits, labels = torch.randn(8, 3), torch.arange(8) % 3
    p_s = priors.from_counts([50, 10, 1])
    assert logit_adjusted_loss(logits, labels, p_s) == balanced_softmax_loss(
        logits, labels, p_s
    )
    assert logit_adjusted_loss(logits, labels, p_s, tau=0) == cross_entropy_loss(
        logits, labels
    )


def test_logit_adjusted_module__says_what_it_was_made_with():
    assert repr(LogitAdjustedLoss([0.5, 0.5], tau=1.5)) == (
        "LogitAdjustedLoss(num_classes=2, tau=1.5)"
    )


@pytest.mark.parametrize(
    ("prior", "tau", "sentence"),
    [
        (
            [0.5, 0.3, 0.2],
            -1.0,
            "`tau` must be finite and not negative, but is -1.0.",
        ),
        ([0.5, 0.5], 1.0, "`source_prior` has 2 entries but `logits` has 3 classes."),
        (
            [0.5, 0.5, 0.0],
            1.0,
            "`source_prior` must be positive for every class, but is 0 for class 2 "
            "(3 classes). Drop the class or give it a sample.",
        ),
    ],
)
def test_logit_adjusted_loss__says_what_is_wrong(prior, tau, sentence):
    batch = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"^`") as error:
        logit_adjusted_loss(*batch, prior, tau=tau)
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        LogitAdjustedLoss(prior, tau=tau)(*batch)
    assert str(error.value) == sentence
