"""Replicates: weights, curvature, fits and intervals against independent references."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from tailshift import Predictions, priors
from tailshift.estimators import replicates as module
from tailshift.estimators.evidence import named_estimator
from tailshift.estimators.likelihood import maximise_jointly
from tailshift.estimators.posteriors import Posteriors
from tailshift.estimators.replicates import Replicates, Sample, prior_interval


def _sample(p, worth=1.0):
    ones = torch.ones(len(p))
    return Sample(p.log().float(), worth, ones, torch.arange(len(p)))


def test_curvature__is_the_step_of_autograd():
    z = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).double()
    z = z.log_softmax(dim=1)
    y = torch.arange(30) % 3

    def losses(x):
        return F.cross_entropy(x[:3].exp() * z + x[3:], y, reduction="none")

    start = torch.zeros(6).double()
    scores = torch.autograd.functional.jacobian(losses, start)  # (n, 2C)
    hessian = torch.autograd.functional.hessian(lambda x: losses(x).sum(), start)
    # a is a logarithm: the information is the Hessian without the gradient's part.
    hessian[:3, :3] -= torch.diag(scores[:, :3].sum(dim=0))
    mean = torch.full((3, 3), 1 / 3).double()
    hessian[:3, :3] += 30 * (torch.eye(3) - mean) + mean / 3
    hessian[3:, 3:] += 30 * torch.eye(3)
    weights = 1 + 0.3 * torch.randn(4, 30).double()  # small steps: long ones are cut
    expected = -torch.linalg.solve(hessian, scores.T @ (weights - 1).T).T
    curvature = module._Curvature.of(_sample(z.exp()), y, ridge=30.0)
    scale, bias = curvature.moves(weights - 1, torch.zeros(4, curvature.size).double())
    found = torch.cat([scale, bias], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_curvature__of_many_classes_keeps_the_blocks(monkeypatch):
    """Without coupling, steps are those of each class by itself, of a like size."""
    z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)).double()
    p, y = z.softmax(dim=1), torch.arange(400) % 3
    away, noise = torch.randn(200, 400).double(), torch.randn(200, 7).double()
    dense = module._Curvature.of(_sample(p), y, 30.0).moves(away, noise)
    monkeypatch.setattr(module, "MAX_DENSE_CLASSES", 2)
    blocks = module._Curvature.of(_sample(p), y, 30.0).moves(away, noise)
    for full, part in zip(dense, blocks, strict=True):
        ratio = part.std(dim=0) / full.std(dim=0)
        assert bool(((ratio > 0.3) & (ratio < 3)).all())


def test_gamma_weights__a_row_that_stands_for_many_varies_less():
    rng = np.random.default_rng(0)
    for worth in (1.0, 4.0):
        sample = _sample(torch.full((500, 2), 0.5), worth)
        drawn = module._gamma_weights(sample, 100, rng).double()
        assert drawn.mean().item() == pytest.approx(1, abs=0.02)
        assert drawn.var().item() == pytest.approx(1 / worth, rel=0.05)


def test_center__is_the_joint_likelihood(mixture):
    mixture = mixture(4, imbalance_ratio=5.0)
    f, y = mixture.draw(mixture.source_prior, 600, seed=100)
    x, _ = mixture.draw(priors.uniform(4), 400, seed=1)
    counts = (1e6 * mixture.source_prior).long()
    estimator = named_estimator(Predictions(f, y, counts, mixture.source_prior))
    estimator.fit(f, y)
    estimator.estimate(x)
    p, p_h = estimator.posterior(x), estimator.posterior(f)
    expected = maximise_jointly(
        Posteriors.of(p),
        Posteriors.of(p_h),
        start=mixture.source_prior[:, None],
        denominator=p_h.mean(dim=0)[:, None],
        pseudo_counts=torch.zeros(4, 1).double(),
    ).x[:4, 0]
    found = estimator.replicates_.center().prior[0]
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.01)


def test_correction__undoes_a_misfit():
    """Two classes, three scores each, posteriors that are wrong: labels know better."""
    density = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]).double()  # p(x|y)
    wrong = torch.tensor([[0.95, 0.05], [0.6, 0.4], [0.3, 0.7]]).double()
    half, q = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.2, 0.8]).double()
    held_out = (half[:, None] * density * 10_000).round().long()  # (y, x)
    target = (q @ density * 10_000).round().long()
    y = torch.arange(2).repeat_interleave(held_out.sum(dim=1))
    x = torch.cat([torch.arange(3).repeat_interleave(row) for row in held_out])
    made = Replicates(
        _sample(wrong[torch.arange(3).repeat_interleave(target)]),
        _sample(wrong[x]),
        y,
        half,
        num_replicates=40,
    )
    plain = made.center().prior[0]
    corrected = torch.cat([part.prior for part in made]).mean(dim=0)
    assert (plain - q).abs().max() > 0.05
    torch.testing.assert_close(corrected, q, rtol=0, atol=0.02)


def test_prior_interval__is_at_least_that_of_labels():
    draws = torch.tensor([0.3, 0.0, 0.7]).double().repeat(50, 1)
    prior = draws[0]
    low, high = prior_interval(draws, prior, 40)
    for c in (0, 2):
        seen = round(40 * prior[c].item())
        exact = stats.binomtest(seen, 40).proportion_ci(method="exact")
        assert (low[c].item(), high[c].item()) == pytest.approx(tuple(exact))
    assert low[1] == 0
    assert high[1].item() == pytest.approx(1 - 0.025 ** (1 / 40))
    absent = torch.tensor([0.001, 0.999]).double()
    low, high = prior_interval(absent.repeat(50, 1), absent, 40)
    assert (low[0].item(), high[1].item()) == (0, 1)


@pytest.mark.parametrize("calibrator", ["auto", "vector", None])
def test_interval__covers_a_prior_whatever_the_misfit(mixture, calibrator):
    """Own scale and bias for each class; the bootstrap of 0.2 covered 46 to 63 %."""
    mixture = mixture(5, imbalance_ratio=20.0)
    g = torch.Generator().manual_seed(0)
    covered = []
    for seed in range(8):
        scale = (0.4 * torch.randn(5, generator=g)).exp().double()
        bias = 0.5 * torch.randn(5, generator=g).double()
        f, y = mixture.draw(mixture.source_prior, 400, seed=2 * seed)
        q = mixture.source_prior.flip(0)
        x, _ = mixture.draw(q, 500, seed=2 * seed + 1)
        f, x = (z.log_softmax(1) * scale + bias for z in (f, x))
        counts = (1e6 * mixture.source_prior).long()
        made = named_estimator(Predictions(f, y, counts, mixture.source_prior))
        made.calibrator = calibrator
        made.fit(f, y)
        made.estimate(x)
        low, high = made.interval_
        covered.append(((low <= q) & (q <= high)).double().mean())
    assert torch.stack(covered).mean() >= 0.85
