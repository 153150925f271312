"""SADE's three experts and the priors that they carry."""

import math

import pytest
import torch

from tailshift import priors
from tailshift.losses import (
    SADELoss,
    balanced_softmax_loss,
    cross_entropy_loss,
    inverse_prior,
    sade_loss,
    sade_priors,
)

COUNTS = [400, 20, 90, 3]
P_S = priors.from_counts(COUNTS)


def _reference_sade(v, y, p_s, p_bar, tau):
    losses = []
    for i in range(len(v[0])):
        total = 0.0
        for e in range(3):
            weights = [1.0, p_s, p_s][e]
            terms = []
            for c in range(len(p_s)):
                weight = 1.0 if e == 0 else weights[c]
                if e == 2:
                    weight /= p_bar[c] ** tau
                terms.append(weight * math.exp(v[e][i][c]))
            total -= math.log(terms[y[i]] / sum(terms))
        losses.append(total)
    return losses


def test_inverse_prior__worked_example():
    """The first in frequency gets the last one's share, the second the third's."""
    assert inverse_prior(P_S).tolist() == pytest.approx(
        [count / 513 for count in (3, 90, 20, 400)]
    )


def test_inverse_prior__keeps_the_shares_and_undoes_itself():
    p_s = priors.from_counts([50, 7, 7, 1, 7])
    p_bar = inverse_prior(p_s)
    assert sorted(p_bar.tolist()) == sorted(p_s.tolist())
    distinct = priors.from_counts([50, 7, 9, 1, 8])
    torch.testing.assert_close(inverse_prior(inverse_prior(distinct)), distinct)


def test_sade_loss__worked_example():
    """Equal logits, p_s = (¾, ¼): ½, ¾ and ¾/(¼)² : ¼/(¾)² = 27 : 1."""
    losses = sade_loss(
        torch.zeros(3, 2, 2), torch.tensor([0, 1]), [0.75, 0.25], reduction="none"
    )
    expected = torch.tensor([1 / 2 * 3 / 4 * 27 / 28, 1 / 2 * 1 / 4 * 1 / 28])
    torch.testing.assert_close(losses, -expected.log())


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.0])
def test_sade_loss__agrees_with_the_loop(tau):
    v, y = 3 * torch.randn(3, 7, 4, dtype=torch.float64), torch.arange(7) % 4
    losses = sade_loss(v, y, P_S, tau=tau, reduction="none")
    p_bar = [count / 513 for count in (3, 90, 20, 400)]
    expected = _reference_sade(v.tolist(), y.tolist(), P_S.tolist(), p_bar, tau)
    torch.testing.assert_close(losses, v.new_tensor(expected), rtol=0, atol=1e-10)


def test_sade_loss__first_two_experts_and_a_third_without_its_inverse():
    v, y = torch.randn(3, 7, 4).double(), torch.arange(7) % 4
    torch.testing.assert_close(
        sade_loss(v, y, P_S, tau=0),
        cross_entropy_loss(v[0], y)
        + balanced_softmax_loss(v[1], y, P_S)
        + balanced_softmax_loss(v[2], y, P_S),
    )


def test_sade_priors__third_expert_is_the_first_one_reversed():
    carried = sade_priors(P_S, tau=1.0)
    torch.testing.assert_close(carried[0], P_S)
    torch.testing.assert_close(carried[1], priors.uniform(4))
    torch.testing.assert_close(carried[2], inverse_prior(P_S))
    sharper = sade_priors(P_S)[2]
    torch.testing.assert_close(sharper, carried[2] ** 2 / (carried[2] ** 2).sum())


def test_sade_loss__experts_reach_the_priors_that_they_are_said_to_carry():
    """At v_e = log p(x|y) + log of expert e's prior no expert has a gradient."""
    likelihood = torch.rand(9, 4).double()  # p(x|y) of nine values of x
    likelihood /= likelihood.sum(0)
    v = likelihood.log() + sade_priors(P_S).log()[:, None]  # (3, 9, 4)
    v.requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for c in range(4):
        losses = sade_loss(v, torch.full((9,), c), P_S, reduction="none")
        loss = loss + (likelihood[:, c] * P_S[c] * losses).sum()
    loss.backward()
    torch.testing.assert_close(v.grad, torch.zeros_like(v), rtol=0, atol=1e-12)


def test_sade_module__says_what_it_was_made_with():
    assert repr(SADELoss(P_S)) == "SADELoss(num_classes=4, tau=2.0)"


@pytest.mark.parametrize(
    ("v", "y", "settings", "kind", "sentence"),
    [
        (
            torch.zeros(2, 5, 4),
            torch.zeros(5).long(),
            {},
            ValueError,
            "`expert_logits` must have shape (3, N, C), but has shape (2, 5, 4).",
        ),
        (
            torch.zeros(3, 4),
            torch.zeros(3).long(),
            {},
            ValueError,
            "`expert_logits` must have shape (3, N, C), but has shape (3, 4).",
        ),
        (
            torch.zeros(3, 5, 4).long(),
            torch.zeros(5).long(),
            {},
            TypeError,
            "`expert_logits` must be floating point, but is torch.int64.",
        ),
        (
            torch.zeros(3, 5, 4),
            torch.zeros(4).long(),
            {},
            ValueError,
            "`labels` must have shape (5,), one for each row of `expert_logits[0]`, "
            "but has shape (4,).",
        ),
        (
            torch.zeros(3, 5, 4),
            torch.zeros(5).long(),
            {"tau": -1.0},
            ValueError,
            "`tau` must be finite and not negative, but is -1.0.",
        ),
    ],
)
def test_sade_loss__says_what_is_wrong(v, y, settings, kind, sentence):
    with pytest.raises(kind) as error:
        sade_loss(v, y, P_S, **settings)
    assert str(error.value) == sentence
    with pytest.raises(kind) as error:
        SADELoss(P_S, **settings)(v, y)
    assert str(error.value) == sentence


def test_sade_module__refuses_logits_of_another_size():
    with pytest.raises(ValueError, match=r"^`") as error:
        SADELoss(P_S)(torch.zeros(3, 5, 6), torch.zeros(5).long())
    assert str(error.value) == (
        "`source_prior` has 4 entries but `expert_logits` has 6 classes."
    )
