"""BalPoE's experts and their logit priors."""

import math

import pytest
import torch

from tailshift import priors
from tailshift.losses import (
    BalPoELoss,
    balanced_softmax_loss,
    balpoe_loss,
    balpoe_priors,
    cross_entropy_loss,
    logit_adjusted_loss,
)

COUNTS = [400, 20, 90, 3]
P_S = priors.from_counts(COUNTS)


def _reference_balpoe(v, y, p_s, taus):
    losses = []
    for i in range(len(y)):
        total = 0.0
        for e, tau in enumerate(taus):
            terms = [p_s[c] ** tau * math.exp(v[e][i][c]) for c in range(len(p_s))]
            total -= math.log(terms[y[i]] / sum(terms))
        losses.append(total / len(taus))
    return losses


def test_balpoe_loss__worked_example():
    """Equal logits, p_s = (¾, ¼): ½, ¾ and 9/10 for the first class."""
    losses = balpoe_loss(
        torch.zeros(3, 2, 2), torch.tensor([0, 1]), [0.75, 0.25], reduction="none"
    )
    expected = torch.tensor([1 / 2 * 3 / 4 * 9 / 10, 1 / 2 * 1 / 4 * 1 / 10])
    torch.testing.assert_close(losses, -expected.log() / 3)


@pytest.mark.parametrize("taus", [(0, 1, 2), (1.0,), (-0.5, 0.5), (0, 0, 1, 3)])
def test_balpoe_loss__agrees_with_the_loop(taus):
    v = 3 * torch.randn(len(taus), 7, 4, dtype=torch.float64)
    y = torch.arange(7) % 4
    losses = balpoe_loss(v, y, P_S, taus=taus, reduction="none")
    expected = _reference_balpoe(v.tolist(), y.tolist(), P_S.tolist(), taus)
    torch.testing.assert_close(losses, v.new_tensor(expected), rtol=0, atol=1e-10)


def test_balpoe_loss__is_the_mean_of_known_losses():
    v, y = torch.randn(3, 7, 4).double(), torch.arange(7) % 4
    torch.testing.assert_close(
        balpoe_loss(v, y, P_S),
        (
            cross_entropy_loss(v[0], y)
            + balanced_softmax_loss(v[1], y, P_S)
            + logit_adjusted_loss(v[2], y, P_S, tau=2)
        )
        / 3,
    )


def test_balpoe_priors__are_powers_of_the_source_prior():
    for prior, power in zip(balpoe_priors(P_S), (1, 0, -1), strict=True):
        torch.testing.assert_close(prior, P_S**power / (P_S**power).sum())


def test_balpoe_loss__experts_reach_their_priors():
    """At v_e = log p(x|y) + log of expert e's prior no expert has a gradient."""
    likelihood = torch.rand(9, 4).double()  # p(x|y) of nine values of x
    likelihood /= likelihood.sum(0)
    v = likelihood.log() + balpoe_priors(P_S).log()[:, None]  # (3, 9, 4)
    v.requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for c in range(4):
        losses = balpoe_loss(v, torch.full((9,), c), P_S, reduction="none")
        loss = loss + (likelihood[:, c] * P_S[c] * losses).sum()
    loss.backward()
    torch.testing.assert_close(v.grad, torch.zeros_like(v), rtol=0, atol=1e-12)


def test_balpoe_module__says_what_it_was_made_with():
    assert repr(BalPoELoss(P_S)) == "BalPoELoss(num_classes=4, taus=(0.0, 1.0, 2.0))"


@pytest.mark.parametrize(
    ("shape", "taus", "sentence"),
    [
        (
            (2, 5, 4),
            (0, 1, 2),
            "`expert_logits` must have shape (3, N, C), but has shape (2, 5, 4).",
        ),
        (
            (2, 5, 4),
            (0, math.nan),
            "`taus` must be finite numbers, one per expert, but is (0, nan). The paper "
            "has (0.0, 1.0, 2.0).",
        ),
        (
            (0, 5, 4),
            (),
            "`taus` must be finite numbers, one per expert, but is (). The paper has "
            "(0.0, 1.0, 2.0).",
        ),
    ],
)
def test_balpoe_loss__says_what_is_wrong(shape, taus, sentence):
    v, y = torch.zeros(shape), torch.zeros(5).long()
    with pytest.raises(ValueError, match=r"^`") as error:
        balpoe_loss(v, y, P_S, taus=taus)
    assert str(error.value) == sentence
    with pytest.raises(ValueError, match=r"^`") as error:
        BalPoELoss(P_S, taus=taus)(v, y)
    assert str(error.value) == sentence
