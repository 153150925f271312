"""Prediction sets: by hand, by loops and enumeration, and their coverage and size."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

import tailshift as ts
from tailshift import priors


def _held_out(probs, labels, logit_prior=None, source_counts=None):
    return ts.Predictions(
        torch.as_tensor(probs).log(), labels, source_counts, logit_prior
    )


def _covered(is_in, labels, num_classes):
    """Return the share of each class's samples whose set contains it."""
    own = is_in[torch.arange(len(labels)), labels].double()
    return torch.bincount(labels, own, minlength=num_classes) / labels.bincount()


def test_thresholds__by_hand():
    """Probabilities 0.8, 0.4, 0.3 of class 0 and 0.9 of class 1; q is half and half.

    Class 0's samples weigh 1/6 each, class 1's 1/2. At coverage 0.6 a sample of class 0
    needs 0.6 · (1 + 1/6) = 0.7 of it, reached at 0.9, 0.8, 0.4: 0.83; one of class 1
    needs 0.6 · 1.5 = 0.9, reached at 0.3.
    """
    p = [[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.1, 0.9]]
    held_out = _held_out(p, torch.tensor([0, 0, 0, 1]), torch.tensor([0.5, 0.5]))
    sets = ts.ConformalSets(0.6).fit(held_out)
    t = sets.thresholds([0.5, 0.5])
    wanted = -torch.tensor([0.4, 0.3]).double().log()
    torch.testing.assert_close(t, wanted, rtol=0, atol=1e-6)
    x = torch.tensor([[0.35, 0.65], [0.45, 0.55], [0.9, 0.1]]).log()
    found = sets.predict_sets(x, [0.5, 0.5])
    assert found.tolist() == [[False, True], [True, True], [True, False]]


def _quantile(pairs, own, coverage):
    """Return the first score at which the weight reaches its share, one by one."""
    pairs = sorted(pairs)
    mass, total = 0.0, sum(w for _, w in pairs) + own
    for score, w in pairs:
        mass += w
        if mass >= coverage * total - 1e-9:
            return score
    return math.inf


def _reference_thresholds(f, y, trained, q, by, coverage, p_s, frequency):
    """Return the thresholds by the definition, sample by sample."""
    num_classes = len(q)
    prior = q if by == "all" else [1 / num_classes] * num_classes

    def score(row, c):
        e = [math.exp(a) * b / t for a, b, t in zip(row, prior, trained, strict=True)]
        return -math.log(e[c] / sum(e))

    scores = [score(row, c) for row, c in zip(f, y, strict=True)]
    n, thresholds = [y.count(c) for c in range(num_classes)], []
    for c in range(num_classes):
        own = sorted(s for s, k in zip(scores, y, strict=True) if k == c)
        if by == "all":
            pairs = [(s, q[k] / p_s[k]) for s, k in zip(scores, y, strict=True)]
            t = _quantile(pairs, q[c] / p_s[c], coverage)
        elif math.ceil(coverage * (n[c] + 1) - 1e-9) <= n[c]:
            t = _quantile([(s, 1) for s in own], 1, coverage)
        else:
            octaves = [math.log2(a / frequency[c]) for a in frequency]
            alike = [math.exp(-(octaves[k] ** 2) / 2) for k in y]
            weights = [a / n[k] for a, k in zip(alike, y, strict=True)]
            own_weight = sum(w**2 for w in weights) / sum(weights) / max(alike)
            t = _quantile(zip(scores, weights, strict=True), own_weight, coverage)
            t = max([t, *own[: int(coverage * n[c] + 1e-9)]])
        thresholds.append(t)
    return thresholds, score


@pytest.mark.parametrize("by", ["all", "class"])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_predict_sets__as_a_loop(coverage, by):
    """All classes are held out; then class 4 is missing and the source is known."""
    counts = torch.tensor([40, 20, 10, 6, 4])
    trained = priors.from_counts([8, 4, 2, 1, 1])
    q = priors.from_counts([1, 1, 3, 9, 2])
    x = torch.randn(30, 5)
    missing = torch.tensor([0] * 20 + [1] * 10 + [2] * 5 + [3] * 3)
    for y in (torch.cat([missing, torch.tensor([4, 4])]), missing):
        f = torch.randn(len(y), 5)
        sets = ts.ConformalSets(coverage, by, allow_empty=True)
        sets.fit(ts.Predictions(f, y, counts, trained))
        n = torch.bincount(y, minlength=5)
        p_s = priors.from_counts(n if n.all() else counts).tolist()
        args = trained.tolist(), q.tolist(), by, coverage
        t, score = _reference_thresholds(
            f.double().tolist(), y.tolist(), *args, p_s, (counts + 0.5).tolist()
        )
        wanted = [
            [score(row, c) <= t[c] + 1e-12 for c in range(5)] for row in x.tolist()
        ]
        assert sets.predict_sets(x, q).tolist() == wanted


@pytest.mark.parametrize("by", ["all", "class"])
def test_predict_sets__expected_coverage_over_all_held_out_samples(by):
    """In a discrete world each held-out sample of two per class is enumerated.

    x is one of three values. The expected coverage is at least as promised, of the
    target or of each class, and below 1: it is no gift of sets that hold everything.
    """
    likelihood = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]]).double()  # p(x|y)
    f, q = likelihood.log().T, torch.tensor([0.2, 0.8])  # (x, y)
    y, share = torch.tensor([0, 0, 1, 1]), torch.zeros(2).double()
    for values in itertools.product(range(3), repeat=4):
        xs = torch.tensor(values)
        held_out = ts.Predictions(f[xs], y, logit_prior=priors.uniform(2))
        sets = ts.ConformalSets(0.6, by, allow_empty=True).fit(held_out)
        covered = sets.predict_sets(f, q).double().T  # (y, x)
        share += likelihood[y, xs].prod() * (likelihood * covered).sum(dim=1)
    promised = (q * share).sum() if by == "all" else share.min()
    assert 0.6 <= promised < 0.85


@pytest.mark.parametrize("by", ["all", "class"])
def test_predict_sets__cover_after_a_shift(mixture, by):
    mixture = mixture(6, spread=1.2)
    p_s, p_t = mixture.source_prior, mixture.source_prior.flip(0)
    covered, ignored, expected = [], [], []
    for seed in range(20):
        held_out = ts.Predictions(*mixture.draw(p_s, 2000, seed), logit_prior=p_s)
        x, y = mixture.draw(p_t, 2000, seed + 100)
        sets = ts.ConformalSets(0.9, by=by).fit(held_out)
        rows = torch.arange(len(y))
        covered.append(sets.predict_sets(x, p_t)[rows, y].double().mean().item())
        ignored.append(sets.predict_sets(x, p_s)[rows, y].double().mean().item())
        expected.append(sets.expected_coverage(p_t, target_prior=p_s))
    assert 0.89 < sum(covered) / 20 < 0.92
    assert by == "class" or sum(ignored) / 20 < 0.85
    assert sum(expected) / 20 == pytest.approx(sum(ignored) / 20, abs=0.02)


@pytest.mark.parametrize("num_samples", [25, 31, 40])
def test_predict_sets__leave_one_out(num_samples):
    """Of n samples of a class, each left out in turn, exactly ⌈0.9 n⌉ are covered."""
    n = num_samples
    y = torch.arange(2).repeat_interleave(n)
    f = torch.randn(2 * n, 2) + 4 * torch.eye(2)[y]  # nearly always right
    covered = torch.zeros(2)
    for i in range(2 * n):
        rest = torch.arange(2 * n) != i
        held_out = ts.Predictions(f[rest], y[rest], logit_prior=priors.uniform(2))
        sets = ts.ConformalSets(0.9, by="class", allow_empty=True).fit(held_out)
        covered[y[i]] += sets.predict_sets(f[i : i + 1], priors.uniform(2))[0, y[i]]
    assert covered.tolist() == [math.ceil(0.9 * n)] * 2


def test_predict_sets__may_be_empty_where_one_class_is_enough(mixture):
    mixture = mixture(6, spread=3.0)
    p_s = mixture.source_prior
    held_out = ts.Predictions(*mixture.draw(p_s, 2000, 0), logit_prior=p_s)
    x, y = mixture.draw(p_s.flip(0), 4000, 1)
    for empty, low, high in ((False, 0.95, 1.0), (True, 0.86, 0.94)):
        sets = ts.ConformalSets(0.9, allow_empty=empty).fit(held_out)
        found = sets.predict_sets(x, p_s.flip(0))
        assert low < found[torch.arange(len(y)), y].double().mean() < high
        assert found.any(dim=1).all() == (not empty)


def _overconfident(mixture):
    mixture = mixture(10, spread=1.2, sharpness=2.0)
    return mixture.source_prior, mixture.draw


def _forest(mixture):
    mixture = mixture(10, spread=1.6)
    g = torch.Generator().manual_seed(0)

    def features(prior, n):
        y = torch.multinomial(prior, n, replacement=True, generator=g)
        return mixture.means[y] + torch.randn(n, 8, generator=g).double(), y

    forest = RandomForestClassifier(50, random_state=0)
    forest.fit(*features(mixture.source_prior, 1500))

    def draw(prior, n, seed):
        g.manual_seed(seed)
        x, y = features(prior, n)
        return torch.from_numpy(forest.predict_proba(x)).log(), y

    return mixture.source_prior, draw


@pytest.mark.parametrize("world", [_overconfident, _forest])
def test_predict_sets__by_class_cover_rare_classes(mixture, world):
    """Ten held-out samples per class, of the tail third one to four."""
    p_s, draw = world(mixture)
    x, y = draw(priors.uniform(10), 4000, 1000)
    tail, size = [], []
    for seed in range(12):
        f, labels = draw(p_s, 100, seed)
        held_out = ts.Predictions(f, labels, logit_prior=p_s)
        sets = ts.ConformalSets(0.9, by="class").fit(held_out)
        assert {7, 8, 9} <= sets.classes_without_guarantee_.keys()
        found = sets.predict_sets(x, p_s)
        tail.append(_covered(found, y, 10)[7:].mean().item())
        size.append(found.sum(dim=1).double().mean().item())
    assert sum(tail) / 12 > 0.85
    assert sum(size) / 12 < 7.5


def test_predict_sets__known_source_counts_make_small_sets(mixture):
    mixture = mixture(100, imbalance_ratio=100, spread=2.5)
    counts = priors.long_tailed_counts(500, 100, 100)
    p_s = priors.from_counts(counts)
    x, y = mixture.draw(p_s, 4000, 1)
    covered, size = [], {True: [], False: []}
    for seed in range(8):
        f, labels = mixture.draw(p_s, 600, seed + 2)
        for known in size:
            held_out = ts.Predictions(
                f, labels, counts if known else None, mixture.source_prior
            )
            found = ts.ConformalSets(0.9).fit(held_out).predict_sets(x, p_s)
            size[known].append(found.sum(dim=1).double().mean())
            if known:
                covered.append(found[torch.arange(len(y)), y].double().mean())
    assert 0.89 < sum(covered) / 8 < 0.92
    assert sum(size[True]) < 0.7 * sum(size[False])


def test_fit__source_counts_that_the_labels_contradict_are_not_used():
    counts = priors.long_tailed_counts(500, 100, 50)
    p_s, q = priors.from_counts(counts), priors.uniform(50)
    uses = {"source": 0, "balanced": 0}
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        f = torch.randn(100, 50, generator=g)
        for held_out, prior in (("source", p_s), ("balanced", q)):
            y = torch.multinomial(prior, 100, replacement=True, generator=g)
            known = ts.ConformalSets(0.9).fit(ts.Predictions(f, y, counts, q))
            unknown = ts.ConformalSets(0.9).fit(ts.Predictions(f, y, None, q))
            uses[held_out] += not torch.equal(
                *(s.thresholds(q) for s in (known, unknown))
            )
    assert uses["source"] >= 38
    assert uses["balanced"] == 0


def test_fit__names_classes_without_guarantee():
    y = torch.tensor([0] * 9 + [1] * 8)
    held_out = ts.Predictions(torch.randn(17, 3), y, class_names=("cat", "dog", "emu"))
    by_class = ts.ConformalSets(0.9, by="class").fit(held_out)
    assert by_class.classes_without_guarantee_ == {1: "dog", 2: "emu"}
    assert ts.ConformalSets(0.9).fit(held_out).classes_without_guarantee_ == {}


@pytest.mark.parametrize("by", ["all", "class"])
def test_predict_sets__tell_tiny_probabilities_apart(by):
    """Of an overconfident model most probabilities are below 1e-17: 1 − p is 1."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(10, (2000,), generator=g)
    f = 200 * (torch.randn(2000, 10, generator=g) + torch.eye(10)[y])
    held_out = ts.Predictions(f[:1000], y[:1000], logit_prior=priors.uniform(10))
    sets = ts.ConformalSets(0.9, by=by).fit(held_out)
    found = sets.predict_sets(f[1000:], priors.uniform(10))
    assert 0.85 < _covered(found, y[1000:], 10).mean() < 0.95
    assert found.sum(dim=1).double().mean() < 8


def test_predict_sets__contain_the_predictions_of_another_prior():
    f, y = torch.randn(500, 4), torch.randint(4, (500,))
    sets = ts.ConformalSets(0.5).fit(ts.Predictions(f, y, None, priors.uniform(4)))
    q, shown = torch.tensor([0.1, 0.2, 0.7, 0.0]), torch.tensor([0.1, 0.1, 0.1, 0.7])
    plain, found = sets.predict_sets(f, q), sets.predict_sets(f, q, shown)
    predicted = torch.nn.functional.one_hot((f + shown.log()).argmax(dim=1), 4).bool()
    assert found[predicted].all()
    likeliest = torch.nn.functional.one_hot((f + q.log()).argmax(dim=1), 4).bool()
    assert torch.equal(found | likeliest, plain | predicted)


def test_predict_sets__class_never_held_out_and_class_never_there():
    f, y = torch.randn(300, 4), torch.randint(2, (300,))
    held_out = ts.Predictions(f, y, logit_prior=priors.uniform(4))
    q = torch.tensor([0.4, 0.3, 0.3, 0.0])
    for by in ("all", "class"):
        sets = ts.ConformalSets(0.8, by=by).fit(held_out)
        found = sets.predict_sets(torch.randn(50, 4), q)
        assert found[:, 2].all()  # nothing is known about it
        assert not found[:, 3].any()  # it cannot occur
        assert sets.expected_coverage([0, 0, 0.5, 0.5], target_prior=q) == 0.5


def test_predict_sets__of_arrays_are_arrays():
    f, y = torch.randn(200, 3), torch.randint(3, (200,))
    sets = ts.ConformalSets().fit(ts.Predictions(f, y))
    found = sets.predict_sets(f.numpy(), [0.2, 0.3, 0.5])
    assert isinstance(found, np.ndarray)
    assert found.dtype == bool
    assert np.array_equal(found, sets.predict_sets(f, [0.2, 0.3, 0.5]).numpy())


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["all", "class"]),
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
)
def test_predict_sets__never_empty_nested_and_permuted(seed, by, shares):
    g = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 80, True, generator=g)
    f, x = torch.randn(80, 4, generator=g), torch.randn(20, 4, generator=g)
    q = priors.from_counts(torch.tensor(shares))
    p, n = priors.from_counts([4, 3, 2, 1]), torch.tensor([70, 20, 10, 2])
    held_out = ts.Predictions(f, y, n, p)
    small, large = (
        ts.ConformalSets(coverage, by).fit(held_out).predict_sets(x, q)
        for coverage in (0.6, 0.9)
    )
    assert small.any(dim=1).all()
    assert (small <= large).all()
    plain = ts.ConformalSets(0.9, by, allow_empty=True).fit(held_out)
    top = torch.nn.functional.one_hot((x - p.log() + q.log()).argmax(dim=1), 4).bool()
    assert torch.equal(plain.predict_sets(x, q) | top, large)
    order = torch.randperm(4, generator=g)
    place = order.argsort()  # where each class has gone
    moved = ts.Predictions(f[:, order], place[y], n[order], p[order])
    again = ts.ConformalSets(0.9, by).fit(moved).predict_sets(x[:, order], q[order])
    assert torch.equal(again, large[:, order])


def test_old_names_still_work():
    f, y = torch.randn(200, 3), torch.randint(3, (200,))
    with pytest.warns(DeprecationWarning, match="Use `coverage`"):
        old = ts.ConformalSets(level=0.7).fit(ts.Predictions(f, y))
    with pytest.warns(DeprecationWarning, match="Use `predict_sets`"):
        found = old.sets(f, [0.2, 0.3, 0.5])
    new = ts.ConformalSets(0.7).fit(ts.Predictions(f, y))
    assert torch.equal(found, new.predict_sets(f, [0.2, 0.3, 0.5]))


def _told(error, act, *args, **kwargs):
    with pytest.raises(error) as raised:
        act(*args, **kwargs)
    return str(raised.value)


def test_errors():
    assert _told(ValueError, ts.ConformalSets, 90) == (
        "`coverage` must be greater than 0 and less than 1, but is 90. "
        "Write 90 % as 0.9."
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
    assert _told(ValueError, sets.predict_sets, torch.randn(5, 3), [0.5, 0.5]) == (
        "`logits` has 3 classes, but the held-out ones have 2."
    )
    assert _told(ValueError, sets.predict_sets, torch.randn(5, 2), [1.0]) == (
        "`target_prior` has 1 entries but `logits` has 2 classes."
    )
