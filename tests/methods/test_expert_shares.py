"""Shares learnt from two views, and the prior that the aggregate carries."""

import pytest
import torch
from torch import Tensor

from tailshift import priors
from tailshift.losses import sade_priors
from tailshift.methods.sade import aggregate_prior, agreement, learn_expert_shares

COUNTS = torch.tensor([500, 200, 80, 30, 10, 4])
C = len(COUNTS)
STEADINESS = torch.tensor([[2, 2, 1, 0, 0, 0], [1] * C, [0, 0, 0, 1, 2, 2]])


def _views(target_prior: Tensor, num: int = 2000) -> tuple[Tensor, Tensor]:
    """Return logits of two views: expert k sees class c with noise less steadiness.

    The first expert is steady on frequent classes, the third on rare ones.
    """
    generator = torch.Generator().manual_seed(5)
    y = torch.multinomial(target_prior, num, replacement=True, generator=generator)
    signal = 4.0 * torch.eye(C)[y]  # (N, C)
    noise = (3.0 - STEADINESS[:, y])[..., None]  # (3, N, 1)

    def view() -> Tensor:
        return signal + noise * torch.randn(3, num, C, generator=generator)

    return view(), view()


FORWARD = priors.from_counts(COUNTS)


@pytest.mark.parametrize(("target", "favoured"), [(FORWARD, 0), (FORWARD.flip(0), 2)])
def test_learn_expert_shares__favours_the_expert_that_is_steady_there(
    target: Tensor, favoured: int
) -> None:
    shares = learn_expert_shares(*_views(target), epochs=10)
    assert shares.dtype == torch.float64
    assert shares.sum().item() == pytest.approx(1, abs=1e-12)
    assert shares.argmax() == favoured
    assert shares[favoured] > 0.5
    assert shares[2 - favoured] == shares.min()


def test_learn_expert_shares__agreement_grows() -> None:
    views = torch.stack(_views(FORWARD)).double()
    equal, learnt = priors.uniform(3), learn_expert_shares(*views)
    assert agreement(views, learnt) > agreement(views, equal)


def test_learn_expert_shares__equal_experts_stay_equal() -> None:
    view = torch.randn(1, 300, C).expand(3, -1, -1)
    shares = learn_expert_shares(view, view.flip(1))
    torch.testing.assert_close(shares, priors.uniform(3))


def test_learn_expert_shares__repeats_and_depends_on_the_seed() -> None:
    views = _views(FORWARD, num=300)
    shares = learn_expert_shares(*views, seed=1)
    torch.rand(3)  # what was drawn before must not matter
    assert torch.equal(learn_expert_shares(*views, seed=1), shares)
    assert not torch.equal(learn_expert_shares(*views, seed=2), shares)


def test_learn_expert_shares__ends_once_an_expert_hardly_counts() -> None:
    """The first sees the same in both views, the others nothing but noise."""
    steady, shaky = 4.0 * torch.randn(1, 300, C), torch.randn(2, 2, 300, C)
    views = [torch.cat([steady, noise]) for noise in 4.0 * shaky]
    shares = learn_expert_shares(*views, epochs=200)
    assert 0.01 < shares.min() < 0.05
    assert torch.equal(learn_expert_shares(*views, epochs=300), shares)


def test_agreement__agrees_with_the_loop() -> None:
    views = torch.randn(2, 3, 7, C, dtype=torch.float64)
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    total = 0.0
    for i in range(7):
        p, q = (
            sum(shares[k] * view[k, i] for k in range(3)).softmax(0)  # type: ignore[union-attr] # a tensor: three terms
            for view in views
        )
        total += float(p @ q / (p @ p * (q @ q)).sqrt())
    assert agreement(views, shares).item() == pytest.approx(total / 7, abs=1e-10)


def test_aggregate_prior__product_of_powers() -> None:
    carried = sade_priors(priors.from_counts(COUNTS))
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    expected = carried[0] ** 0.5 * carried[1] ** 0.3 * carried[2] ** 0.2
    torch.testing.assert_close(
        aggregate_prior(carried, shares), expected / expected.sum()
    )
    for k in range(3):
        torch.testing.assert_close(
            aggregate_prior(carried, torch.eye(3)[k]), carried[k]
        )


def test_aggregate_prior__compensated_aggregates_are_the_posterior() -> None:
    """Experts with v_k = log p(x|y) + log π_k, whatever their shares."""
    log_likelihood = torch.randn(8, C, dtype=torch.float64)
    carried = sade_priors(priors.from_counts(COUNTS))
    v = log_likelihood + carried.log()[:, None] + torch.randn(3, 8, 1)
    shares = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    aggregate = (shares[:, None, None] * v).sum(0)
    uniform = aggregate - aggregate_prior(carried, shares).log()
    torch.testing.assert_close(uniform.softmax(1), log_likelihood.softmax(1))


@pytest.mark.parametrize("shape", [(3, 5), (3, 0, 4)])
def test_learn_expert_shares__first_view_of_another_shape(
    shape: tuple[int, ...],
) -> None:
    view = torch.zeros(shape)
    with pytest.raises(ValueError, match="first_view") as error:
        learn_expert_shares(view, view)
    assert str(error.value) == (
        "`first_view` must have shape (K, N, C) and not be empty, but has shape "
        f"{shape}."
    )


def test_learn_expert_shares__views_of_different_shapes() -> None:
    with pytest.raises(ValueError, match="second_view") as error:
        learn_expert_shares(torch.zeros(3, 5, 4), torch.zeros(3, 6, 4))
    assert str(error.value) == (
        "`second_view` must have the shape of `first_view`, (3, 5, 4), but has shape "
        "(3, 6, 4)."
    )
