"""Shrinkage: the likelihood by hand and by a loop, and whom it serves."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift import priors
from tailshift.estimators.shrinkage import (
    likeliest_strength,
    log_dirichlet_multinomial,
    shrink,
    siblings_likelihood,
    worth_to_parent,
)


def test_log_dirichlet_multinomial__by_hand():
    """Draws 0, 0, 1 from an urn of 1 and 2 balls, one more of its kind each time:

    1/3 · 2/4 · 2/5 = 1/15.
    """
    n, a = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 2.0]])
    found = log_dirichlet_multinomial(n, a).exp().item()
    assert found == pytest.approx(1 / 15, rel=1e-5)


def test_worth_to_parent__by_hand():
    """Four samples at A = 1 are worth 4 · 2/5 draws; at A → ∞ all four, at 0 one."""
    n = torch.tensor([[3.0, 1.0]]).double()
    worth = [worth_to_parent(n, A).sum().item() for A in (1.0, 1e12, 0.0)]
    assert worth == pytest.approx([1.6, 4.0, 1.0])


def _reference_siblings(n, strength, beyond):
    total = 0.0
    for k, row in enumerate(n):
        b = list(beyond)
        for j, other in enumerate(n):
            if j != k:
                w = (1 + strength) / (sum(other) + strength)
                b = [x + w * y for x, y in zip(b, other, strict=True)]
        mass = sum(b)
        a = [x * strength / (1 + strength + mass) for x in b]
        seen = 0.0
        for c, count in enumerate(row):
            for drawn in range(int(count)):  # the urn, ball by ball
                total += math.log((a[c] + drawn) / (sum(a) + seen))
                seen += 1
    return total


@pytest.mark.parametrize("strength", [0.3, 7.0, 4000.0])
def test_siblings_likelihood__as_a_loop(strength):
    n = [[5, 0, 2], [1, 1, 1], [0, 9, 0], [0, 0, 0]]
    beyond = [0.5, 2.0, 1.5]
    found = siblings_likelihood(
        torch.tensor(n).double(), strength, torch.tensor(beyond).double()
    )
    assert found == pytest.approx(_reference_siblings(n, strength, beyond))


def test_likeliest_strength__is_the_maximum_and_finds_the_true_one():
    m = priors.from_counts([5, 3, 1, 1])
    theta = torch.distributions.Dirichlet(20 * m).sample((400,))
    n = torch.distributions.Multinomial(50, probs=theta).sample()
    best = likeliest_strength(n, m)
    assert 15 < best < 27
    at = siblings_likelihood(n, best, m)
    assert all(siblings_likelihood(n, best * x, m) < at for x in (0.8, 0.95, 1.05, 1.2))


def test_likeliest_strength__without_samples_trusts_the_parent():
    nothing = torch.zeros(3, 4).double()
    assert likeliest_strength(nothing, priors.uniform(4)) == pytest.approx(1e6)


def _sites(strength, num_sites, num_samples, num_classes=10):
    p_s = priors.from_counts(priors.long_tailed_counts(1000, 50, num_classes))
    parent = priors.from_counts(p_s.flip(0) + 0.1)
    theta = torch.distributions.Dirichlet(strength * parent).sample((num_sites,))
    n = torch.distributions.Multinomial(num_samples, probs=theta).sample()
    return p_s, theta, n


@pytest.mark.parametrize("strength", [10.0, 30.0, 100.0])
def test_shrink__is_closer_than_each_site_and_than_the_parent(strength):
    p_s, theta, n = _sites(strength, num_sites=200, num_samples=30)
    own = torch.cat([torch.zeros(1, 10), n])
    q = shrink(own.double(), [-1] + [0] * 200, p_s.double())
    distance = {
        name: (mix - theta).abs().sum(dim=1).mean()
        for name, mix in [("shrunk", q.means[1:]), ("own", n / 30), ("all", q.means[0])]
    }
    assert distance["shrunk"] < 0.97 * min(distance["own"], distance["all"])


def test_shrink__regions_tell_a_site_of_which_nothing_is_known():
    """Two regions of opposite mixes: a new site gets its own region's."""
    p_s = priors.uniform(2)
    rows = [[0, 0], [0, 0], [0, 0], [80, 20], [85, 15], [20, 80], [15, 85], [0, 0]]
    parents = [-1, 0, 0, 1, 1, 2, 2, 1]
    q = shrink(torch.tensor(rows).double(), parents, p_s)
    assert 0.75 < q.means[7][0] < 0.85
    assert 0.4 < q.means[0][0] < 0.6
    assert q.strengths[1] > 3 * q.strengths[0]


counts = st.lists(st.integers(0, 50), min_size=3, max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.lists(counts, min_size=1, max_size=6), st.permutations([0, 1, 2]))
def test_shrink__sums_to_1_is_positive_and_permutes(rows, order):
    own = torch.tensor([[0, 0, 0], *rows]).double()
    parents = [-1, 0, *([1] * (len(rows) - 1))]
    p_s = torch.tensor([0.7, 0.2, 0.1]).double()
    q = shrink(own, parents, p_s).means
    assert (q > 0).all()
    torch.testing.assert_close(q.sum(dim=1), torch.ones(len(own)).double())
    again = shrink(own[:, order], parents, p_s[order]).means
    torch.testing.assert_close(again, q[:, order], rtol=1e-3, atol=1e-5)
