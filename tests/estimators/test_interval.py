"""Bootstrap weights and intervals, against what theory says of a mean."""

import pytest
import torch

from tailshift.estimators.base import bootstrap_interval, poisson_weights


def test_bootstrap_interval__of_a_mean_is_two_standard_errors():
    x = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()

    def mean(weights, _):
        return (x @ weights.double() / weights.sum(0))[None]

    low, high = bootstrap_interval(
        mean, num_samples=400, num_held_out=1, num_replicates=2000
    )
    error = x.std() / 20
    assert low.item() == pytest.approx((x.mean() - 1.96 * error).item(), abs=0.01)
    assert high.item() == pytest.approx((x.mean() + 1.96 * error).item(), abs=0.01)


def test_poisson_weights__have_mean_and_variance_one(monkeypatch):
    monkeypatch.setattr("tailshift.estimators.base.ROWS", 3000)
    weights = poisson_weights(20_000, 3, torch.Generator().manual_seed(0))
    assert weights.shape == (20_000, 3)
    assert weights.dtype == torch.uint8
    torch.testing.assert_close(
        weights.double().mean(0), torch.ones(3).double(), rtol=0, atol=0.05
    )
    torch.testing.assert_close(
        weights.double().var(0), torch.ones(3).double(), rtol=0, atol=0.05
    )


def test_poisson_weights__no_replicate_is_empty():
    weights = poisson_weights(1, 200, torch.Generator().manual_seed(0))
    assert (weights.sum(0) > 0).all()
