"""Prediction sets: by hand, by a loop, coverage after a shift, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailshift as ts
from tailshift import priors
from tailshift.estimators.conformal import set_scores


def _held_out(probs, labels, trained_prior=None):
    return ts.Predictions(torch.tensor(probs).log(), labels, None, trained_prior)


def test_thresholds__by_hand():
    """Scores −1, 0.6, 0.7 of class 0 and −1 of class 1, which has half of the target.

    Class 0's samples weigh 1/6 each, class 1's 1/2. At level 0.6 a sample of class 0
    needs 0.6 · (1 + 1/6) = 0.7 of it, reached at −1, −1, 0.6: 0.83; one of class 1
    needs 0.6 · 1.5 = 0.9, reached at 0.7.
    """
    p = [[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.1, 0.9]]
    held_out = _held_out(p, torch.tensor([0, 0, 0, 1]), torch.tensor([0.5, 0.5]))
    sets = ts.ConformalSets(0.6, by="all").fit(held_out)
    t = sets.thresholds([0.5, 0.5])
    torch.testing.assert_close(t, torch.tensor([0.6, 0.7]).double(), rtol=0, atol=1e-6)
    found = sets.sets(torch.tensor([[0.35, 0.65], [0.45, 0.55]]).log(), [0.5, 0.5])
    assert found.tolist() == [[False, True], [True, True]]


def _reference_set(f, y, trained, q, level, x, allow_empty):
    """Return the set of one sample, by the definition, class by class."""

    def probs(row):
        e = [math.exp(a) * b / c for a, b, c in zip(row, q, trained, strict=True)]
        return [a / sum(e) for a in e]

    def score(row, c):
        p = probs(row)
        return -1.0 if p[c] == max(p) and not allow_empty else 1 - p[c]

    n = [y.count(c) for c in range(len(q))]
    chosen = []
    for c in range(len(q)):
        pairs = [
            (score(row, k), q[k] / (n[k] / len(y))) for row, k in zip(f, y, strict=True)
        ]
        own = q[c] / (n[c] / len(y))
        total = sum(w for _, w in pairs) + own
        threshold, mass = math.inf, 0.0
        for s, w in sorted(pairs):
            mass += w / total
            if mass >= level - 1e-9:
                threshold = s
                break
        chosen.append(score(x, c) <= threshold + 1e-12)
    return chosen


@pytest.mark.parametrize("allow_empty", [False, True])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_sets__as_a_loop(level, allow_empty):
    f = torch.randn(60, 4).double()
    y = torch.cat([torch.arange(4), torch.randint(4, (56,))])
    trained = priors.from_counts([8, 4, 2, 1]).tolist()
    q = priors.from_counts([1, 1, 3, 9]).tolist()
    held_out = ts.Predictions(f.float(), y, trained_prior=torch.tensor(trained))
    x = torch.randn(30, 4)
    sets = ts.ConformalSets(level, by="all", allow_empty=allow_empty).fit(held_out)
    found = sets.sets(x, q)
    known = held_out.logits.tolist(), y.tolist(), trained, q, level
    for row, chosen in zip(x.tolist(), found.tolist(), strict=True):
        assert chosen == _reference_set(*known, row, allow_empty)


def test_sets__by_class_is_the_quantile_of_its_own_scores():
    f, y = torch.randn(900, 3), torch.randint(3, (900,))
    held_out = ts.Predictions(f, y, trained_prior=priors.uniform(3))
    t = ts.ConformalSets(0.9, by="class").fit(held_out).thresholds(priors.uniform(3))
    scores = set_scores(f.double().softmax(dim=1))
    for c in range(3):
        own = scores[y == c, c].sort().values
        assert t[c] == own[math.ceil(0.9 * (len(own) + 1)) - 1]


@pytest.mark.parametrize("by", ["all", "class"])
def test_sets__cover_after_a_shift(mixture, by):
    mixture = mixture(6, spread=1.2)
    p_s, p_t = mixture.source_prior, mixture.source_prior.flip(0)
    covered, ignored = [], []
    for seed in range(20):
        held_out = ts.Predictions(
            *mixture.draw(p_s, 2000, seed), trained_prior=mixture.source_prior
        )
        x, y = mixture.draw(p_t, 2000, seed + 100)
        sets = ts.ConformalSets(0.9, by=by).fit(held_out)
        rows = torch.arange(len(y))
        covered.append(sets.sets(x, p_t)[rows, y].double().mean().item())
        ignored.append(sets.sets(x, p_s)[rows, y].double().mean().item())
    assert 0.89 < sum(covered) / 20 < 0.92
    assert by == "class" or sum(ignored) / 20 < 0.85


def test_sets__that_may_be_empty_cover_no_more_than_asked(mixture):
    """Where the first answer is right in 97 of 100, sets of at most one class do."""
    mixture = mixture(6, spread=3.0)
    p_s, p_t = mixture.source_prior, mixture.source_prior.flip(0)
    covered = {False: [], True: []}
    for seed in range(20):
        held_out = ts.Predictions(
            *mixture.draw(p_s, 2000, seed), trained_prior=mixture.source_prior
        )
        x, y = mixture.draw(p_t, 2000, seed + 100)
        for empty, shares in covered.items():
            sets = ts.ConformalSets(0.9, allow_empty=empty).fit(held_out).sets(x, p_t)
            shares.append(sets[torch.arange(len(y)), y].double().mean().item())
            assert sets.any(dim=1).all() == (not empty)
    assert sum(covered[False]) / 20 > 0.95
    assert 0.89 < sum(covered[True]) / 20 < 0.92


@pytest.mark.parametrize("num_samples", [25, 31, 40])
def test_sets__that_may_be_empty_leave_one_out(num_samples):
    """Of n samples, each left out in turn, exactly ⌈0.9 n⌉ are covered.

    That is split conformal prediction's count for scores without ties: the sample is
    covered if it is among the ⌈0.9 n⌉ smallest of all n.
    """
    n = num_samples
    y = torch.arange(2).repeat_interleave(n)
    f = torch.randn(2 * n, 2) + 4 * torch.eye(2)[y]  # nearly always right
    covered = torch.zeros(2)
    for i in range(2 * n):
        rest = torch.arange(2 * n) != i
        held_out = ts.Predictions(f[rest], y[rest], trained_prior=priors.uniform(2))
        sets = ts.ConformalSets(0.9, by="class", allow_empty=True).fit(held_out)
        covered[y[i]] += sets.sets(f[i : i + 1], priors.uniform(2))[0, y[i]]
    assert covered.tolist() == [math.ceil(0.9 * n)] * 2


def test_sets__pool_classes_with_few_samples(mixture):
    """Two samples of a class cannot tell its 90 % quantile: all samples help out."""
    mixture = mixture(4, spread=1.2)
    x, y = mixture.draw(priors.uniform(4), 4000, seed=1)
    kept = torch.cat([(y == c).nonzero()[: 2 if c == 3 else 300, 0] for c in range(4)])
    held_out = ts.Predictions(x[kept], y[kept], trained_prior=mixture.source_prior)
    t = ts.ConformalSets(0.9, by="class").fit(held_out).thresholds(priors.uniform(4))
    assert t.isfinite().all()
    new, labels = mixture.draw(priors.uniform(4), 4000, seed=2)
    sets = ts.ConformalSets(0.9, by="class").fit(held_out).sets(new, priors.uniform(4))
    own = labels == 3
    assert 0.8 < sets[own][:, 3].double().mean() < 0.99


def test_sets__class_never_held_out_and_class_never_there():
    f, y = torch.randn(300, 4), torch.randint(2, (300,))
    held_out = ts.Predictions(f, y, trained_prior=priors.uniform(4))
    q = torch.tensor([0.4, 0.3, 0.3, 0.0])
    found = ts.ConformalSets(0.8, by="all").fit(held_out).sets(torch.randn(50, 4), q)
    assert found[:, 2].all()  # nothing is known of it
    assert not found[:, 3].any()  # it cannot occur
    pooled = ts.ConformalSets(0.8, by="class").fit(held_out).thresholds(q)
    assert pooled[2].isfinite()


def test_sets__of_arrays_are_arrays():
    f, y = torch.randn(200, 3), torch.randint(3, (200,))
    sets = ts.ConformalSets().fit(ts.Predictions(f, y))
    found = sets.sets(f.numpy(), [0.2, 0.3, 0.5])
    assert isinstance(found, np.ndarray)
    assert found.dtype == bool
    assert np.array_equal(found, sets.sets(f, [0.2, 0.3, 0.5]).numpy())


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["all", "class"]),
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
)
def test_sets__never_empty_nested_and_permuted(seed, by, shares):
    g = torch.Generator().manual_seed(seed)
    f, y = torch.randn(80, 4, generator=g), torch.randint(4, (80,), generator=g)
    x, q = torch.randn(20, 4, generator=g), priors.from_counts(torch.tensor(shares))
    p = priors.from_counts([4, 3, 2, 1])
    held_out = ts.Predictions(f, y, trained_prior=p)
    small, large = (
        ts.ConformalSets(level, by=by).fit(held_out).sets(x, q) for level in (0.6, 0.9)
    )
    assert small.any(dim=1).all()
    assert (small <= large).all()
    plain = ts.ConformalSets(0.9, by=by, allow_empty=True).fit(held_out).sets(x, q)
    top = (x - p.log() + q.log()).argmax(dim=1)
    rows = torch.arange(len(x))
    # The first answer in every set can but lower the threshold of the others.
    plain[rows, top] = True
    assert (large <= plain).all()
    order = torch.randperm(4, generator=g)
    place = order.argsort()  # where each class has gone
    moved = ts.Predictions(f[:, order], place[y], trained_prior=p[order])
    again = ts.ConformalSets(0.9, by=by).fit(moved).sets(x[:, order], q[order])
    assert torch.equal(again, large[:, order])


def _told(error, act, *args, **kwargs):
    with pytest.raises(error) as raised:
        act(*args, **kwargs)
    return str(raised.value)


def test_errors():
    assert _told(ValueError, ts.ConformalSets, 90) == (
        "`level` must be greater than 0 and less than 1, but is 90."
    )
    assert _told(ValueError, ts.ConformalSets, 0.9, by="site") == (
        "`by` must be 'all' or 'class', but is 'site'."
    )
    assert _told(RuntimeError, ts.ConformalSets().thresholds, [0.5, 0.5]) == (
        "This ConformalSets is not fitted. Call fit(held_out) with labelled samples "
        "that the model was not trained on first."
    )
    sets = ts.ConformalSets().fit(
        ts.Predictions(torch.randn(9, 2), torch.ones(9).int())
    )
    assert _told(ValueError, sets.sets, torch.randn(5, 3), [0.5, 0.5]) == (
        "`logits` has 3 classes, but the held-out ones have 2."
    )
    assert _told(ValueError, sets.sets, torch.randn(5, 2), [1.0]) == (
        "`target_prior` has 1 entries but `logits` has 2 classes."
    )
