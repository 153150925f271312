"""Shrinkage: the likelihood by hand and by a loop, and whom it serves."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailshift import priors
from tailshift.estimators.shrinkage import (
    excess_spread,
    expected_distance,
    fitting_strength,
    likeliest_strength,
    log_dirichlet_multinomial,
    nearest_mix,
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


def test_excess_spread__by_hand():
    """Two sites of 4 and of the shares (1, 0), (0, 1); the parent surely even.

    A' = 1 makes ρ = 1/2: expected is 1/2 · (1/2 + 1/8) = 5/16, found 1/2.
    """
    n = torch.tensor([[4, 0], [0, 4], [0, 0]]).double()
    sure = 1e12 * priors.uniform(2).double()
    assert excess_spread(n, 1.0, sure) == pytest.approx(0.6, abs=1e-6)


def test_fitting_strength__finds_the_true_one_and_has_no_excess():
    m = priors.from_counts([5, 3, 1, 1])
    theta = torch.distributions.Dirichlet(20 * m).sample((400,))
    n = torch.distributions.Multinomial(50, probs=theta).sample()
    best = fitting_strength(n, m)
    assert 15 < best < 27
    assert excess_spread(n, best, m) == pytest.approx(0, abs=1e-6)


def test_fitting_strength__at_its_ends():
    even = priors.uniform(2)
    assert fitting_strength(torch.zeros(3, 2).double(), even) == 1e6
    alike = torch.tensor([[5, 5]] * 3).double()
    assert fitting_strength(alike, even) == 1e6
    opposite = torch.tensor([[1e6, 0], [0, 1e6]]).double()
    assert fitting_strength(opposite, 1e6 * even) < 0.2


def test_shrink__by_spread_above_estimates_alone():
    own = torch.tensor([[0, 0], [0, 0], [0, 0], [8, 2], [3, 7], [9, 1], [4, 6]])
    parents, estimates = [-1, 0, 0, 1, 1, 2, 2], [False] * 3 + [True] + [False] * 3
    n, even = own.double(), priors.uniform(2)
    by_counts, q = shrink(n, parents, even), shrink(n, parents, even, estimates)
    assert by_counts.strengths.keys() == q.strengths.keys() == {-1, 0, 1, 2}
    assert q.strengths[1] != pytest.approx(by_counts.strengths[1], rel=0.05)


def test_expected_distance__as_drawn():
    a = torch.tensor([0.3, 2.0, 0.05, 4.0]).double()
    q = priors.from_counts([1, 5, 0, 2]).double()
    theta = torch.distributions.Dirichlet(a).sample((200_000,))
    drawn = (theta - q).abs().sum(dim=1).mean().item()
    assert expected_distance(q, a) == pytest.approx(drawn, abs=0.005)


amounts = st.lists(st.floats(0.01, 40), min_size=4, max_size=4)


@settings(max_examples=40, deadline=None)
@given(amounts, amounts)
def test_nearest_mix__is_expected_no_further_than_own_parent_or_mean(counts, pseudo):
    n, a = torch.tensor(counts).double(), torch.tensor(pseudo).double()
    q = nearest_mix(n, a)
    assert q.sum().item() == pytest.approx(1)
    at = expected_distance(q, a + n)
    for mix in (n / n.sum(), a / a.sum(), (a + n) / (a + n).sum()):
        assert at <= expected_distance(mix, a + n) + 1e-4


def test_nearest_mix__is_closer_where_sites_have_little_in_common():
    """100 classes at A = 10: the posterior mean is further off than the counts."""
    p = priors.from_counts(priors.long_tailed_counts(1000, 50, 100)).double()
    theta = torch.distributions.Dirichlet(10 * p).sample((300,))
    n = torch.distributions.Multinomial(30, probs=theta).sample().double()
    near = torch.stack([nearest_mix(row, 10 * p) for row in n])
    own, mean, near = (
        (q - theta).abs().sum(dim=1).mean() for q in (n / 30, (n + 10 * p) / 40, near)
    )
    assert near < 0.98 * min(own, mean)


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
