"""The online estimator: follows a drift, forgets, and keeps to its window."""

import pytest
import torch

from tailshift import priors
from tailshift.estimators import EMEstimator, OnlineEstimator


def _fit(mixture, **settings):
    held_out = mixture.draw(mixture.source_prior, 2000, seed=100)
    return OnlineEstimator(source_prior=mixture.source_prior, **settings).fit(*held_out)


def test_online__follows_a_drift(mixture):
    mixture = mixture(5)
    first, second = mixture.source_prior, mixture.source_prior.flip(0)
    online = _fit(mixture, half_life=300.0)
    for seed in range(10):
        q = online.update(mixture.draw(first, 200, seed)[0])
    assert (q - first).abs().sum() < 0.2
    for seed in range(10, 20):
        q = online.update(mixture.draw(second, 200, seed)[0])
    assert (q - second).abs().sum() < 0.25
    everything = torch.cat(
        [mixture.draw(first if s < 10 else second, 200, s)[0] for s in range(20)]
    )
    held_out = mixture.draw(first, 2000, seed=100)
    forgetful = (q - second).abs().sum()
    unforgetting = EMEstimator(source_prior=first).fit(*held_out).estimate(everything)
    assert forgetful < 0.5 * (unforgetting - second).abs().sum()


def test_online__without_forgetting_is_em(mixture):
    mixture = mixture(4)
    online = _fit(mixture, half_life=1e12, strength=0.0)
    held_out = mixture.draw(mixture.source_prior, 2000, seed=100)
    em = EMEstimator(source_prior=mixture.source_prior).fit(*held_out)
    x, _ = mixture.draw(priors.uniform(4), 600, seed=1)
    for batch in x.split(100):
        q = online.update(batch)
    torch.testing.assert_close(q, em.estimate(x), rtol=0, atol=2e-3)
    assert online.num_samples_ == 600


def test_online__keeps_a_bounded_window(mixture):
    mixture = mixture(3)
    online = _fit(mixture, half_life=50.0)
    for seed in range(30):
        online.update(mixture.draw(priors.uniform(3), 40, seed)[0])
    assert online.num_samples_ == 1200
    assert 300 <= online._samples.num_samples < 340


def test_online__estimate_is_update_and_reset_forgets(mixture):
    mixture = mixture(3)
    online = _fit(mixture)
    x, _ = mixture.draw(priors.uniform(3), 200, seed=1)
    q = online.estimate(x)
    online.update(mixture.draw(mixture.source_prior, 200, seed=2)[0])
    online.reset()
    assert online.num_samples_ == 0
    torch.testing.assert_close(online.update(x), q)


def test_online__half_life_must_be_positive():
    with pytest.raises(ValueError, match="half_life") as error:
        OnlineEstimator(half_life=0.0)
    assert str(error.value) == "`half_life` must be positive, but is 0."
