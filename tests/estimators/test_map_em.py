"""MAP-EM: follows a tilt, leaves it where the target is none, and does no harm."""

import statistics

import numpy as np
import pytest
import torch

from tailshift import post_compensate, priors, targets
from tailshift.estimators import EMEstimator, MAPEstimator
from tailshift.estimators.map_em import STRENGTHS
from tailshift.estimators.tilt import tilted

pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)


def _accuracy(f, y, source, q):
    answer = post_compensate(f, logit_prior=source, target_prior=q)
    return 100 * (answer.argmax(1) == y).double().mean().item()


def _targets(num_classes, counts):
    """Return priors: the eleven, and a permuted tail."""
    order = counts[
        torch.randperm(num_classes, generator=torch.Generator().manual_seed(3))
    ]
    found = {
        spec: priors.from_counts(targets.target_counts(spec, counts, 10_000))
        for spec in targets.PAPER_TARGETS
    }
    found["permuted"] = priors.from_counts(
        targets.target_counts("forward:50", order, 10_000)
    )
    return found


def _gaps(mixture, target, seeds, num_held_out, num_samples):
    """Return accuracies with EM, MAP, no adaptation and the true prior, less the last.

    Scored on 20,000 other samples of the target, so that chance plays no part.
    """
    source = mixture.source_prior
    x, y = mixture.draw(target, 20_000, seed=77)
    oracle = _accuracy(x, y, source, target)
    rows = []
    for seed in seeds:
        held_out = mixture.draw(source, num_held_out, seed=1000 + seed)
        unlabelled, _ = mixture.draw(target, num_samples, seed=seed)
        em, shrunk = (
            estimator(source_prior=source).fit(*held_out).estimate(unlabelled)
            for estimator in (EMEstimator, MAPEstimator)
        )
        rows.append([_accuracy(x, y, source, q) - oracle for q in (em, shrunk, source)])
    return np.array(rows)


def test_map__follows_a_tilt(mixture):
    mixture = mixture(30)
    source = mixture.source_prior
    held_out = mixture.draw(source, 1000, seed=100)
    estimator = MAPEstimator(source_prior=source).fit(*held_out)
    q = estimator.estimate(mixture.draw(tilted(source, -0.5), 2000, seed=1)[0])
    assert estimator.strength_ >= 1e3
    assert (q - tilted(source, -0.5)).abs().sum() < 0.1
    assert estimator.gamma_interval_[0] < -0.5 < estimator.gamma_interval_[1]


def test_map__leaves_the_tilt_for_another_target(mixture):
    mixture = mixture(30)
    source = mixture.source_prior
    held_out = mixture.draw(source, 1000, seed=100)
    estimator = MAPEstimator(source_prior=source).fit(*held_out)
    target = _targets(30, (10_000 * source).long())["permuted"]
    q = estimator.estimate(mixture.draw(target, 2000, seed=1)[0])
    assert estimator.strength_ <= 300
    assert (q - target).abs().sum() < 0.6 * (estimator.center_ - target).abs().sum()


def test_map__strengths_are_the_weight_of_the_center(mixture):
    mixture = mixture(5)
    held_out = mixture.draw(mixture.source_prior, 500, seed=100)
    x, _ = mixture.draw(priors.from_counts([1, 3, 1, 3, 1]), 300, seed=1)
    for center, expected in [
        ("uniform", priors.uniform(5)),
        ("source", mixture.source_prior),
        ([0.1, 0.3, 0.2, 0.2, 0.2], torch.tensor([0.1, 0.3, 0.2, 0.2, 0.2])),
    ]:
        distances = []
        for strength in (0.0, 300.0, 1e7):
            estimator = MAPEstimator(
                source_prior=mixture.source_prior, center=center, strengths=[strength]
            )
            q = estimator.fit(*held_out).estimate(x)
            assert estimator.strength_ == strength
            distances.append((q - expected).abs().sum().item())
        assert distances[0] > distances[1] > distances[2]
        assert distances[2] < 5e-3  # one sample of the source is added
    assert (STRENGTHS[0], STRENGTHS[-1]) == (0.0, 1e6)


def test_map__is_the_same_on_some_of_the_samples(mixture, monkeypatch):
    """Choices may be made by a part of many samples; the estimate uses all."""
    mixture = mixture(10)
    held_out = mixture.draw(mixture.source_prior, 1000, seed=100)
    x, _ = mixture.draw(priors.uniform(10), 4000, seed=1)
    whole = MAPEstimator(source_prior=mixture.source_prior).fit(*held_out).estimate(x)
    monkeypatch.setattr("tailshift.estimators.map_em.CHOICE_ELEMENTS", 10_000)
    part = MAPEstimator(source_prior=mixture.source_prior).fit(*held_out).estimate(x)
    assert (whole - part).abs().sum() < 0.05


def test_map__an_unknown_center_is_a_sentence(mixture):
    mixture = mixture(3)
    held_out = mixture.draw(mixture.source_prior, 300, seed=100)
    with pytest.raises(ValueError, match="center") as error:
        MAPEstimator(center="middle").fit(*held_out).estimate(held_out[0])
    assert str(error.value) == (
        "`center` must be 'tilt', 'uniform', 'source' or a prior, but is 'middle'."
    )


def _check_eleven(mixture, seeds):
    worst_harm, medians = 0.0, []
    for name, target in _targets(10, (10_000 * mixture.source_prior).long()).items():
        gaps = _gaps(mixture, target, seeds, num_held_out=400, num_samples=500)
        _, shrunk, none = gaps.mean(axis=0)
        worst_harm = min(worst_harm, shrunk - none)
        if name != "permuted":
            medians.append(shrunk)
    assert worst_harm > -0.5
    assert statistics.median(medians) > -1.0


def test_map__does_no_harm_on_eleven_targets(mixture):
    _check_eleven(mixture(10, imbalance_ratio=50.0, sharpness=1.5), range(2))


@pytest.mark.slow
def test_map__does_no_harm_on_eleven_targets_over_many_draws(mixture):
    _check_eleven(mixture(10, imbalance_ratio=50.0, sharpness=1.5), range(20))


def _check_hundred_classes(mixture, seeds):
    """300 unlabelled samples of 100 classes: less than EM can use."""
    counts = (10_000 * mixture.source_prior).long()
    targets = _targets(100, counts)
    all_gaps = []
    for name in ("uniform", "backward:10", "forward:50", "permuted"):
        gaps = _gaps(mixture, targets[name], seeds, num_held_out=2000, num_samples=300)
        em, shrunk, _ = gaps.mean(axis=0)
        assert shrunk > -1.0, name
        all_gaps.append((em, shrunk))
    em, shrunk = np.mean(all_gaps, axis=0)
    assert shrunk >= em


def test_map__hundred_classes_and_few_samples(mixture):
    _check_hundred_classes(mixture(100, imbalance_ratio=50.0, spread=5.0), range(1))


@pytest.mark.slow
def test_map__hundred_classes_and_few_samples_over_many_draws(mixture):
    _check_hundred_classes(mixture(100, imbalance_ratio=50.0, spread=5.0), range(10))


def _digits_gaps(digits, seed):
    """Return, for each of the eleven targets, MAP and none less the oracle."""
    held_out, pool = digits.split(seed)
    source = priors.from_counts(digits.counts)
    estimator = MAPEstimator(source_prior=source)
    estimator.fit(digits.logits[held_out], digits.labels[held_out])
    rows = []
    for spec in targets.PAPER_TARGETS:
        n = targets.target_counts(spec, digits.counts, 60)
        chosen = torch.cat([own[:k] for own, k in zip(pool, n, strict=True)])
        f, y = digits.logits[chosen], digits.labels[chosen]
        priors_ = (estimator.estimate(f), source, priors.from_counts(n))
        shrunk, none, oracle = (_accuracy(f, y, source, q) for q in priors_)
        rows.append((shrunk - oracle, shrunk - none))
    return np.array(rows)


@pytest.mark.parametrize(
    "num_draws", [3, pytest.param(30, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_map__on_digits(digits, num_draws):
    gaps = np.mean([_digits_gaps(digits, seed) for seed in range(num_draws)], axis=0)
    assert np.median(gaps[:, 0]) > -1.0
    assert gaps[:, 1].min() > -0.5


def test_interval__covers_at_about_its_rate(mixture):
    mixture = mixture(4, imbalance_ratio=5.0)
    target = priors.from_counts([1, 2, 2, 3])
    inside = []
    for seed in range(15):
        held_out = mixture.draw(mixture.source_prior, 400, seed=1000 + seed)
        estimator = MAPEstimator(source_prior=mixture.source_prior).fit(*held_out)
        estimator.estimate(mixture.draw(target, 400, seed)[0])
        low, high = estimator.interval_
        inside.append((low <= target) & (target <= high))
    assert 0.87 <= torch.stack(inside).double().mean() <= 1.0
