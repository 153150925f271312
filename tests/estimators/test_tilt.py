"""The tilt: by hand, against a grid, its interval, and where it has nothing to tilt."""

import math

import numpy as np
import pytest
import torch

from tailshift import priors
from tailshift.estimators import TiltEstimator
from tailshift.estimators.tilt import tilted


def _fit(mixture, num_held_out=3000, seed=100, **settings):
    f, y = mixture.draw(mixture.source_prior, num_held_out, seed=seed)
    return TiltEstimator(source_prior=mixture.source_prior, **settings).fit(f, y)


def test_tilted__worked_example():
    p = torch.tensor([0.8, 0.2], dtype=torch.float64)
    torch.testing.assert_close(tilted(p, 1.0), p)
    torch.testing.assert_close(tilted(p, 0.0), priors.uniform(2))
    torch.testing.assert_close(tilted(p, -1.0), p.flip(0))
    torch.testing.assert_close(tilted(p, 2.0)[0].item(), 0.64 / 0.68)


@pytest.mark.parametrize("gamma", [1.5, 1.0, 0.0, -1.0])
def test_tilt__finds_gamma(mixture, gamma):
    mixture = mixture(10)
    tilt = _fit(mixture)
    f, _ = mixture.draw(tilted(mixture.source_prior, gamma), 3000, seed=1)
    q = tilt.estimate(f)
    assert tilt.gamma_ == pytest.approx(gamma, abs=0.15)
    assert tilt.gamma_interval_[0] < gamma < tilt.gamma_interval_[1]
    torch.testing.assert_close(q, tilted(mixture.source_prior, tilt.gamma_))


def test_tilt__is_the_maximum_on_a_grid(mixture):
    mixture = mixture(5)
    tilt = _fit(mixture)
    f, _ = mixture.draw(priors.uniform(5), 300, seed=1)
    tilt.estimate(f)
    ratios = (tilt.posterior(f) / tilt.denominator_).numpy()
    grid = tilt.gamma_ + np.linspace(-0.5, 0.5, 1001)
    p_s = mixture.source_prior.numpy()
    values = [np.log(ratios @ (p_s**g / (p_s**g).sum())).sum() for g in grid]
    assert abs(grid[np.argmax(values)] - tilt.gamma_) < 1e-2  # a weak prior pulls to 1


@pytest.mark.slow  # 200 replicates per draw: minutes
@pytest.mark.parametrize(
    ("num_draws", "least"),
    [(30, 0.83), pytest.param(300, 0.87, marks=pytest.mark.slow)],
    ids=["quick", "slow"],
)
def test_gamma_interval__covers_at_about_its_rate(mixture, num_draws, least):
    """Held-out samples are few: their noise must count, and the calibrator's."""
    mixture, gamma = mixture(6, imbalance_ratio=5.0), -0.5
    target = tilted(mixture.source_prior, gamma)
    inside = []
    for seed in range(num_draws):
        tilt = _fit(mixture, num_held_out=400, seed=1000 + seed)
        tilt.estimate(mixture.draw(target, 2000, seed)[0])
        low, high = tilt.gamma_interval_
        inside.append(low <= gamma <= high)
    assert least <= np.mean(inside) <= 1.0


def test_tilt__of_a_uniform_prior_is_uniform():
    f = torch.randn(100, 3, dtype=torch.float64)
    y = torch.multinomial(f.softmax(1), 1)[:, 0]
    tilt = TiltEstimator(source_prior=priors.uniform(3)).fit(f, y)
    torch.testing.assert_close(tilt.estimate(f), priors.uniform(3))
    assert tilt.gamma_ == 1.0
    assert tilt.gamma_interval_ == (-math.inf, math.inf)


def test_interval__holds_the_estimate(mixture):
    mixture = mixture(5)
    tilt = _fit(mixture)
    q = tilt.estimate(mixture.draw(priors.uniform(5), 500, seed=1)[0])
    low, high = tilt.interval_
    assert ((low < q) & (q < high)).all()
    assert (high - low).max() < 0.2
