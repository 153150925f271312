import numpy as np
import pytest
import torch

from tailshift.data.randomness import sample_order
from tailshift.data.samplers import SAMPLERS

COUNTS = np.array([60, 25, 10, 4, 1])
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), COUNTS))
N = len(LABELS)
NUM_EPOCHS = 8


def _reference_distribution(name, n, progress):
    """The formulas of [kang2020] and, for reverse, [zhou2020]."""
    instance, balanced = n / n.sum(), np.ones(len(n)) / len(n)
    weights = {
        "instance": instance,
        "class_balanced": balanced,
        "square_root": n**0.5,
        "progressive": (1 - progress) * instance + progress * balanced,
        "reverse": n.max() / n,
    }[name]
    return weights / weights.sum()


def _draw(name, epoch=0, **options):
    options = {"seed": 3, "num_epochs": NUM_EPOCHS} | options
    return SAMPLERS.get(name).draw(LABELS, epoch=epoch, **options)


def test_samplers__registered_with_a_sentence():
    for name in SAMPLERS:
        assert SAMPLERS.get(name).sentence.endswith(".")


@pytest.mark.parametrize("name", SAMPLERS.names())
@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_class_distribution__equals_the_formula(name, progress):
    prior = SAMPLERS.get(name).class_distribution(COUNTS, progress=progress)
    expected = _reference_distribution(name, COUNTS, progress)
    assert prior.dtype == torch.float64
    np.testing.assert_allclose(prior, expected, rtol=1e-12)


@pytest.mark.parametrize("name", SAMPLERS.names())
def test_class_distribution__a_class_without_images_is_never_sampled(name):
    prior = SAMPLERS.get(name).class_distribution([5, 0, 1])
    assert prior[1] == 0
    assert prior.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", SAMPLERS.names())
def test_draw__every_epoch_is_within_one_of_the_distribution(name):
    """And exact in the mean: 400 epochs, standard error of a rounding at most 0.025."""
    sampler, totals = SAMPLERS.get(name), np.zeros(5)
    expected = N * _reference_distribution(name, COUNTS, 0.5)
    for seed in range(400):
        draws = _draw(name, epoch=NUM_EPOCHS // 2, seed=seed)
        counts = np.bincount(LABELS[draws.sample_ids], minlength=5)
        assert len(draws.sample_ids) == N
        assert (abs(counts - expected) < 1).all()
        totals += counts
    np.testing.assert_allclose(totals / 400, expected, atol=0.1)
    assert sampler.class_distribution(COUNTS, progress=0.5).sum() == pytest.approx(1)


@pytest.mark.parametrize("name", SAMPLERS.names())
def test_draw__images_of_a_class_are_sampled_equally_often(name):
    draws = _draw(name, epoch=4)
    sampled = np.bincount(draws.sample_ids, minlength=N)
    for c in range(5):
        of_class = sampled[np.equal(LABELS, c)]
        assert of_class.max() - of_class.min() <= 1


@pytest.mark.parametrize("name", SAMPLERS.names())
def test_draw__servings_of_a_sample_are_numbered_from_zero(name):
    draws = _draw(name, epoch=4)
    for sample in np.unique(draws.sample_ids):
        numbers = np.sort(draws.occurrences[draws.sample_ids == sample])
        assert np.array_equal(numbers, np.arange(len(numbers)))


@pytest.mark.parametrize("name", SAMPLERS.names())
def test_draw__repeats_and_differs_between_epochs_and_seeds(name):
    first, again = _draw(name), _draw(name)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.sample_ids, _draw(name, epoch=1).sample_ids)
    assert not np.array_equal(first.sample_ids, _draw(name, seed=4).sample_ids)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_draw__instance_is_a_permutation_by_the_order_of_hashes(epoch):
    draws = _draw("instance", epoch=epoch)
    assert np.array_equal(draws.sample_ids, sample_order(N, seed=3, epoch=epoch))
    assert not draws.occurrences.any()


def test_draw__progressive_begins_as_instance_balanced():
    assert np.array_equal(_draw("progressive").sample_ids, _draw("instance").sample_ids)


def test_draw__progressive_goes_to_class_balanced():
    rare = [np.sum(LABELS[_draw("progressive", e).sample_ids] == 4) for e in range(9)]
    assert rare[0] == 1
    assert rare[-1] == 20
    assert rare == sorted(rare)


def test_draw__class_balanced_changes_the_images_of_large_classes():
    chosen = [set(_draw("class_balanced", e).sample_ids) for e in range(2)]
    assert chosen[0] != chosen[1]


def test_draw__classes_without_images_do_not_matter():
    spread = LABELS * 3  # classes 1, 2, 4, 5 … are empty
    for name in SAMPLERS:
        draws = SAMPLERS.get(name).draw(spread, seed=3, epoch=2, num_epochs=8)
        assert np.array_equal(draws.sample_ids, _draw(name, 2).sample_ids)
