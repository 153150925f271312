from itertools import combinations, product

import numpy as np
import pytest
import torch

from tailshift.evaluation.sampling import (
    class_weighted_error,
    draw_test_set,
    random_subset,
    shifted_subset,
    subset_deviation,
)
from tailshift.priors import long_tailed_counts
from tailshift.targets import exact_prior, target_counts

LABELS = torch.arange(5).repeat(8)
COUNTS = torch.tensor([50, 40, 30, 20, 10])


def _subsets(labels, counts):
    """Yield the samples of every subset with these counts."""
    members = [(labels == c).nonzero()[:, 0].tolist() for c in range(len(counts))]
    choices = [combinations(own, n) for own, n in zip(members, counts, strict=True)]
    for chosen in product(*choices):
        yield [row for rows in chosen for row in rows]


@pytest.mark.parametrize("counts", [[3, 2, 1], [5, 1, 4], [0, 2, 3], [5, 3, 4]])
def test_expected__is_the_mean_and_deviation_over_all_subsets(counts):
    """Up to 60 subsets, enumerated; the last counts leave one: all samples."""
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 2])
    correct = torch.tensor([1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1]).bool()
    subsets = list(_subsets(labels, counts))
    accuracies = torch.stack([correct[rows].double().mean() for rows in subsets])
    counts = torch.tensor(counts)
    available = torch.bincount(labels)
    weights = (counts / available)[labels].double()
    mean = (weights * correct).sum() / weights.sum()
    assert mean.item() == pytest.approx(accuracies.mean().item(), abs=1e-6)
    deviation = subset_deviation(correct, labels, counts)
    assert deviation == pytest.approx(accuracies.std(correction=0).item(), abs=1e-12)


def test_draw_test_set__expected_weighs_by_the_share_of_the_subsets():
    test_set = draw_test_set("forward:4", LABELS, COUNTS)
    counts = target_counts("forward:4", COUNTS, 8)
    torch.testing.assert_close(test_set.weights[0], (counts / 8)[LABELS])
    assert test_set.weights.shape == (1, 40)
    assert torch.equal(test_set.counts, counts)
    torch.testing.assert_close(test_set.target_prior, counts / counts.sum().double())


def test_draw_test_set__expected_is_the_mean_of_random_subsets():
    random = draw_test_set(
        "backward:4", LABELS, COUNTS, sampling="random", repeats=4000
    ).weights
    expected = draw_test_set("backward:4", LABELS, COUNTS, sampling="expected")
    torch.testing.assert_close(random.mean(0), expected.weights[0], atol=0.04, rtol=0)


def test_draw_test_set__expected_on_the_balanced_target_is_plain():
    test_set = draw_test_set("uniform", LABELS, COUNTS, sampling="expected")
    assert torch.equal(test_set.weights, torch.ones(1, 40))
    correct = torch.arange(40) % 3 == 0
    assert subset_deviation(correct, LABELS, test_set.counts) == 0


def test_class_weighted_error__is_unbiased():
    """Its square, over all samples of two classes with known chances, by enumeration.

    Class 0 has three samples that are correct with chance 0.3, class 1 two with 0.8.
    """
    labels, prior = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0.7, 0.3])
    chances = torch.tensor([0.3, 0.3, 0.3, 0.8, 0.8], dtype=torch.float64)
    outcomes = torch.cartesian_prod(*[torch.tensor([False, True])] * 5)  # (32, 5)
    probability = torch.where(outcomes, chances, 1 - chances).prod(1)
    squares = torch.tensor(
        [class_weighted_error(row, labels, prior) ** 2 for row in outcomes]
    )
    expected = 0.7**2 * 0.3 * 0.7 / 3 + 0.3**2 * 0.8 * 0.2 / 2
    assert (probability * squares).sum().item() == pytest.approx(expected, rel=1e-6)


def test_class_weighted_error__a_class_with_one_sample_adds_nothing():
    correct, labels = torch.tensor([True, False, True]), torch.tensor([0, 0, 1])
    alone = class_weighted_error(correct, labels, [0.5, 0.5])
    assert alone == pytest.approx(0.5 * 0.5)


def test_subset_deviation__more_samples_than_there_are():
    with pytest.raises(ValueError, match="`counts`") as error:
        subset_deviation(torch.tensor([True]), torch.tensor([1]), [0, 2])
    assert str(error.value) == (
        "`counts` asks for 2 samples of class 1, but `labels` has 1."
    )


def test_draw_test_set__first_is_the_first_subset():
    test_set = draw_test_set("forward:4", LABELS, COUNTS, sampling="first")
    counts = target_counts("forward:4", COUNTS, 8)
    rows = test_set.weights[0].nonzero()[:, 0]
    assert torch.equal(rows, shifted_subset(LABELS, counts))
    assert test_set.weights.sum() == counts.sum()
    torch.testing.assert_close(test_set.target_prior, counts / counts.sum().double())


def test_draw_test_set__random_has_the_counts_each_time():
    test_set = draw_test_set("backward:4", LABELS, COUNTS, sampling="random", repeats=6)
    counts = target_counts("backward:4", COUNTS, 8)
    assert test_set.weights.shape == (6, 40)
    for weights in test_set.weights:
        drawn = torch.bincount(LABELS, weights, minlength=5)
        assert torch.equal(drawn, counts.double())
    assert len(test_set.weights.unique(dim=0)) == 6


def test_draw_test_set__random_is_that_of_its_seed():
    def weights(seed):
        return draw_test_set(
            "backward:4", LABELS, COUNTS, sampling="random", seed=seed
        ).weights

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_random_subset__takes_every_sample_equally_often():
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([4, 2, 0, 8, 1])
    taken = torch.zeros(40)
    for _ in range(2000):
        taken[random_subset(LABELS, counts, generator)] += 1 / 2000
    torch.testing.assert_close(taken, counts[LABELS] / 8, atol=0.05, rtol=0)


@pytest.mark.parametrize("target", ["uniform", "forward:50", "dirichlet:0.5"])
def test_draw_test_set__reweighted_classes_weigh_as_the_target(target):
    labels = torch.cat([LABELS, torch.tensor([0, 0, 3])])  # unequal classes
    test_set = draw_test_set(target, labels, COUNTS, sampling="reweighted")
    available = torch.bincount(labels)
    expected = exact_prior(target, COUNTS, available)
    weight = torch.bincount(labels, test_set.weights[0].double())
    torch.testing.assert_close(weight / len(labels), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(test_set.target_prior, expected)


def _reference_subset(labels, counts):
    left, taken = list(counts), []
    for index, label in enumerate(labels):
        if left[label] > 0:
            left[label] -= 1
            taken.append(index)
    return taken


def test_shifted_subset__worked_example():
    """The first two of class 0 are samples 1 and 2, the first of class 2 is 3."""
    assert shifted_subset([1, 0, 0, 2, 0, 2], [2, 0, 1]).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_shifted_subset__as_a_loop(kind):
    labels = torch.randint(7, (300,)).tolist()
    counts = [3, 0, 9, 1, 12, 5, 20]
    indices = shifted_subset(kind(labels), kind(counts))
    assert indices.dtype == torch.int64
    assert indices.tolist() == _reference_subset(labels, counts)


def test_shifted_subset__whole_set():
    labels = torch.tensor([1, 0, 1])
    assert shifted_subset(labels, torch.bincount(labels)).tolist() == [0, 1, 2]


@pytest.mark.paper
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("num_classes", "per_class", "ratio", "size"),
    [
        (100, 100, 50, 2486),
        (100, 100, 25, 2956),
        (100, 100, 10, 3876),
        (100, 100, 5, 4932),
        (100, 100, 2, 7166),
        (1000, 50, 50, 12058),
        (1000, 50, 25, 14437),
        (1000, 50, 10, 19059),
        (1000, 50, 5, 24365),
        (1000, 50, 2, 35574),
    ],
)
def test_shifted_subset__sizes_in_the_paper(
    direction, num_classes, per_class, ratio, size
):
    class_counts = long_tailed_counts(500, 100, num_classes)
    class_counts = class_counts[torch.randperm(num_classes)]
    labels = torch.arange(num_classes).repeat(per_class)
    labels = labels[torch.randperm(len(labels))]
    counts = target_counts(f"{direction}:{ratio}", class_counts, per_class)
    indices = shifted_subset(labels, counts)
    assert len(indices) == size
    assert torch.equal(torch.bincount(labels[indices], minlength=num_classes), counts)
    assert (indices.diff() > 0).all()


@pytest.mark.parametrize(
    ("labels", "counts", "exception", "message"),
    [
        (
            [0, 0, 1],
            [1, 2],
            ValueError,
            "`counts` asks for 2 samples of class 1, but `labels` has 1.",
        ),
        (
            [0, 2],
            [1, 0],
            ValueError,
            "`labels` must lie in 0..1, but label 1 (counted from 0) is 2.",
        ),
        ([0, 1], [0, 0], ValueError, "`counts` must not be 0 for every class."),
        (
            [0, 1],
            [0.5, 0.5],
            TypeError,
            "`counts` must be integers, but are torch.float64.",
        ),
    ],
)
def test_shifted_subset__refuses_with_a_sentence(labels, counts, exception, message):
    with pytest.raises(exception) as error:
        shifted_subset(labels, counts)
    assert str(error.value) == message
