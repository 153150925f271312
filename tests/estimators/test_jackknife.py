"""The jackknife: the variance of a mean, and of a calibrator fitted anew."""

import pytest
import torch

from tailshift.calibration import BiasCorrectedTemperatureScaling
from tailshift.estimators.posteriors import Posteriors
from tailshift.estimators.tilt import jackknife_variance


def _held_out(num_samples, seed):
    g = torch.Generator().manual_seed(seed)
    f = 2 * torch.randn(num_samples, 2, generator=g, dtype=torch.float64)
    y = torch.multinomial(f.softmax(1), 1, generator=g)[:, 0]
    return f.softmax(1), y


def _mean_variance(calibrator, target):
    """Return the mean of many jackknife variances of the first class's share."""
    found = []
    for seed in range(20):
        p, y = _held_out(500, seed)
        variance, dof = jackknife_variance(
            lambda samples, m: (samples.mean()[0] - m[0]).item(),
            Posteriors.of(target),
            Posteriors.of(p),
            y,
            calibrator,
        )
        assert dof == 9
        found.append(variance)
    return sum(found) / len(found)


def test_jackknife_variance__of_a_mean():
    p, _ = _held_out(20_000, seed=99)
    expected = p[:, 0].var().item() / 500
    found = _mean_variance(None, torch.full((1, 2), 0.5).double())
    assert found == pytest.approx(expected, rel=0.25)


def test_jackknife_variance__counts_the_calibrator():
    target = torch.tensor([[0.7, 0.3]]).double()
    fitted_once = _mean_variance(None, target)
    fitted_anew = _mean_variance(BiasCorrectedTemperatureScaling(), target)
    assert fitted_anew > 1.2 * fitted_once


def test_jackknife_variance__of_one_sample_is_not_known():
    p, y = _held_out(1, seed=0)
    one = Posteriors.of(p)
    assert jackknife_variance(lambda *_: 1.0, one, one, y, None) == (0.0, 1)
