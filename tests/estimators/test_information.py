"""Effective samples: by hand, against a matrix inverse, against real errors."""

import pytest
import torch

from tailshift import priors
from tailshift.estimators import EMEstimator, OnlineEstimator
from tailshift.estimators.posteriors import effective_samples


def test_effective_samples__by_hand():
    """Two classes, posteriors 0.9 or 0.1: worth (0.9 − 0.1)² = 0.64 of a label."""
    p = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).repeat(5, 1).double()
    even = priors.uniform(2)
    assert effective_samples(p, even, even, torch.ones(10)) == pytest.approx(6.4)
    twice = effective_samples(p, even, even, torch.full((10,), 2.0))
    assert twice == pytest.approx(12.8)


def test_effective_samples__is_the_share_of_the_labels_covariance():
    p = torch.randn(5000, 4).mul(3).softmax(dim=1).double()
    m, v = p.mean(dim=0), torch.rand(5000).double()
    q = (v[:, None] * p).sum(dim=0) / v.sum()
    for _ in range(200):  # EM, whose fixed point is the mean responsibility
        r = p * q / m
        r = r / r.sum(dim=1, keepdim=True)
        q = (v[:, None] * r).sum(dim=0) / v.sum()
    seen = torch.cov(r.T, aweights=v, correction=0).trace()
    labels = (torch.diag(q) - torch.outer(q, q)).trace()
    found = effective_samples(p, q, m, v)
    assert found == pytest.approx((v.sum() * seen / labels).item(), rel=1e-6)


def test_effective_samples__of_one_class_alone():
    p, q = torch.tensor([[1.0, 0.0]] * 3), torch.tensor([1.0, 0.0])
    assert effective_samples(p, q, torch.tensor([0.5, 0.5]), torch.ones(3)) == 3


@pytest.mark.filterwarnings("ignore::tailshift.estimators.FewSamplesWarning")
def test_effective_samples__foretell_the_error(mixture):
    mixture, p_t = mixture(6), priors.from_counts([1, 2, 3, 4, 5, 6])
    em = EMEstimator(source_prior=mixture.source_prior)
    em.fit(*mixture.draw(mixture.source_prior, 1000, seed=99))
    errors, sizes = [], []
    for seed in range(60):
        q = em.estimate(mixture.draw(p_t, 100, seed)[0])
        errors.append((q - p_t).square().sum().item())
        sizes.append(em.effective_samples_)
    realised = (1 - p_t.square().sum().item()) / (sum(errors) / len(errors))
    assert 0.7 < sum(sizes) / len(sizes) / realised < 1.4


def test_effective_samples__of_a_stream_are_those_not_forgotten(mixture):
    mixture = mixture(3)
    online = OnlineEstimator(source_prior=mixture.source_prior, half_life=50.0)
    online.fit(*mixture.draw(mixture.source_prior, 2000, seed=1))
    online.update(mixture.draw(mixture.source_prior, 1000, seed=2)[0])
    assert online.effective_samples_ < 73  # 1 / (1 − 2^(−1/50)) samples in all


def test_effective_samples__before_an_estimate():
    with pytest.raises(RuntimeError) as error:
        _ = EMEstimator().effective_samples_
    assert str(error.value) == (
        "This EMEstimator has no estimate yet. Call estimate(logits) with unlabelled "
        "data first."
    )
