"""Effective samples: by hand, against a matrix inverse, against real errors."""

import pytest
import torch

from tailshift import priors
from tailshift.estimators import EMEstimator, OnlineEstimator
from tailshift.estimators.information import effective_samples


def test_effective_samples__by_hand():
    """Two classes alike, posteriors 0.9 or 0.1: a label's worth is (0.9 − 0.1)² = 0.64.

    With the pseudo-sample, the variance is ½ / (10 · 0.64 + 1).
    """
    p = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).repeat(5, 1).double()
    even, h = priors.uniform(2), torch.tensor([1e12, 1e12])
    found = effective_samples(p, even, even, h, torch.ones(10))
    assert found == pytest.approx(6.4)
    known = effective_samples(p, even, even, torch.tensor([20, 20]), torch.ones(10))
    assert known == pytest.approx(1 / (1 / 7.4 + 1 / 40) - 1)  # ½ · (¼ + ¼)/20 over ½


@pytest.mark.parametrize("num_samples", [4, 40])  # fewer and more than classes
def test_effective_samples__as_a_pseudo_inverse(num_samples):
    p = torch.randn(num_samples, 6).mul(3).softmax(dim=1).double()
    m, q = priors.from_counts([9, 5, 3, 2, 1, 1]), p.mean(dim=0)
    inner = (num_samples * q + m) / (num_samples + 1)
    r = p * inner / m
    r = r / r.sum(dim=1, keepdim=True)
    info = sum(torch.outer(x, x) for x in (r - inner) / inner.sqrt())
    tangent = torch.eye(6).double() - torch.outer(inner.sqrt(), inner.sqrt())
    v = tangent @ torch.linalg.inv(info + torch.eye(6).double()) @ tangent
    # Those of q_c e_c / Σ q e, with independent errors e of variance 1/7:
    slope = torch.diag(inner) - torch.outer(inner, inner)
    variance = (inner * v.diagonal()).sum() + (slope**2).sum() / 7
    expected = (1 - (inner**2).sum()) / variance - 1
    h = torch.full((6,), 7)
    found = effective_samples(p, q, m, h, torch.ones(num_samples))
    assert found == pytest.approx(expected.item())


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
