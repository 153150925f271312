"""Class means that combine labels and posteriors, by hand and against SciPy."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from tailshift.estimators import figures
from tailshift.estimators.figures import LabelSums, Means, Rule


def test_class_means__by_hand():
    """3 of 4 labels are right, posteriors say a half: (3 + 20 * 0.5) / 24."""
    sums = LabelSums(*torch.tensor([[[4.0, 0.0]], [[3.0, 0.0]], [[2.0, 0.0]]]).double())
    means = Means(torch.tensor([[0.5, 0.7]]).double(), torch.ones(1, 2).double())
    found = figures.combine_means(means, sums, torch.tensor([20.0]).double(), None)
    assert found.recall.tolist() == [pytest.approx([13 / 24, 0.7])]
    assert found.loss.tolist() == [pytest.approx([22 / 24, 1.0])]


def test_class_means__recalls_have_a_beta_distribution():
    """With exponential weights of labels, 3 right and 1 wrong, and k = 10."""
    rng = np.random.default_rng(0)
    size = 20_000
    weights = torch.from_numpy(rng.standard_exponential((size, 4))).double()
    sums = LabelSums(
        weights.sum(dim=1)[:, None], weights[:, :3].sum(dim=1)[:, None], weights[:, :1]
    )
    means = Means(torch.full((size, 1), 0.6).double(), torch.ones(size, 1).double())
    k = torch.full((size,), 10.0).double()
    recall = figures.combine_means(means, sums, k, rng).recall[:, 0].numpy()
    assert stats.kstest(recall, stats.beta(3 + 6, 1 + 4).cdf).pvalue > 0.001


def test_agree_with_labels__is_the_penalised_maximum():
    n, s = np.array([50.0, 8.0, 0.0]), np.array([0.9, 0.6, 0.3])
    hits = np.array([35.0, 3.0, 0.0])

    def loss(delta):
        p = 1 / (1 + (1 / s - 1) * np.exp(-delta))
        each = hits * np.log(p) + (n - hits) * np.log(1 - p)
        return (2.0 * delta**2) - (20 / (n + 20) * each).sum()

    delta = optimize.minimize_scalar(loss, tol=1e-12).x
    sums = LabelSums(*(torch.from_numpy(part)[None] for part in (n, hits, hits)))
    means = Means(torch.from_numpy(s)[None], torch.from_numpy(s)[None])
    found = figures.agree_with_labels(means, sums)
    expected = 1 / (1 + (1 / s - 1) * np.exp(-delta))
    np.testing.assert_allclose(found.recall[0].numpy(), expected, rtol=1e-5)
    assert found.loss is means.loss


def test_worth_of_posteriors__is_the_beta_binomial_evidence():
    sums = LabelSums(*torch.tensor([[[8.0, 5.0]], [[7.0, 1.0]], [[0.0, 0.0]]]).double())
    recall = torch.tensor([0.9, 0.3]).double()
    k = figures.WORTHS.numpy()
    log_p = sum(
        stats.betabinom(n, k * s, k * (1 - s)).logpmf(hits)
        for n, hits, s in ((8, 7, 0.9), (5, 1, 0.3))
    )
    log_p = log_p + stats.norm(np.log(20), 1).logpdf(np.log(k))
    expected = np.exp(log_p - log_p.max())
    found = figures.worth_of_posteriors(recall, sums).numpy()
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)


def test_worth_of_posteriors__falls_if_labels_disagree():
    n = torch.full((1, 10), 50.0).double()
    agree, differ = (
        LabelSums(n, 50 * share[None], n)
        for share in (torch.full((10,), 0.8), torch.tensor([1.0, 0.6] * 5))
    )
    recall = torch.full((10,), 0.8).double()
    k = [
        (figures.worth_of_posteriors(recall, sums) @ figures.WORTHS.log()).exp()
        for sums in (agree, differ)
    ]
    assert k[0] > 60 > 30 > k[1]


def test_rule__joins_blocks_of_held_out_samples():
    g = torch.Generator().manual_seed(0)
    f, f_h = (torch.randn(n, 3, generator=g) for n in (5, 8))
    y, rows = torch.arange(8) % 3, torch.tensor([1, 4, 7])
    whole = Rule.of(f, f_h, y, rows)
    first = Rule.of(f, f_h[:5], y[:5], torch.tensor([1, 4]))
    joined = first.extended([Rule.of(f[:1], f_h[5:], y[5:], torch.tensor([2]))])
    for name in Rule._fields:
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name))
    assert whole.hits.tolist() == (f_h.argmax(dim=1) == y).tolist()
