import pytest
import torch

from tailshift.evaluation.sampling import draw_test_set, random_subset
from tailshift.targets import exact_prior, resolve_target, shifted_subset

LABELS = torch.arange(5).repeat(8)
COUNTS = torch.tensor([50, 40, 30, 20, 10])


def test_draw_test_set__first_is_the_papers_subset():
    test_set = draw_test_set("forward:4", LABELS, COUNTS)
    counts = resolve_target("forward:4", COUNTS, 8)
    rows = test_set.weights[0].nonzero()[:, 0]
    assert torch.equal(rows, shifted_subset(LABELS, counts))
    assert test_set.weights.sum() == counts.sum()
    torch.testing.assert_close(test_set.target_prior, counts / counts.sum().double())


def test_draw_test_set__random_has_the_counts_each_time():
    test_set = draw_test_set("backward:4", LABELS, COUNTS, sampling="random", repeats=6)
    counts = resolve_target("backward:4", COUNTS, 8)
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
