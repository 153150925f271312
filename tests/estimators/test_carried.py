"""The prior that logits carry: known in simulated worlds, and on the kept logits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import tailshift as ts
from tailshift.estimators import declared_kappa
from tailshift.metrics import accuracy

LOGITS = Path(__file__).parents[2] / "results" / "logits"
KEPT = sorted(LOGITS.glob("*_quick*seed0.safetensors"))


def _world(seed, *, kappa, temperature=1.0, num_samples=1000, ratio=100.0, extra=0.0):
    """Return logits T log p(x|c) + κ log p_s(c) + extra, labels and p_s, exactly."""
    g = torch.Generator().manual_seed(seed)
    means = 0.5 * torch.randn(20, 10, generator=g).double()
    p_s = ts.priors.from_counts(ratio ** (-torch.arange(20) / 19))
    y = torch.multinomial(p_s, num_samples, True, generator=g)
    x = means[y] + torch.randn(num_samples, 10, generator=g).double()
    log_likelihood = -(torch.cdist(x, means) ** 2) / 2
    return temperature * log_likelihood + kappa * p_s.log() + extra, y, p_s


@pytest.mark.parametrize("temperature", [1.0, 1.5])
@pytest.mark.parametrize("kappa", [-0.5, 0.0, 0.5, 1.0, 1.2])
def test_carried_prior__recovers_the_tilt(kappa, temperature):
    for seed in range(3):
        world = _world(seed, kappa=kappa, temperature=temperature)
        found = ts.measure_logit_prior(*world)
        assert found.kappa == pytest.approx(kappa, abs=0.05 * temperature)
        assert found.temperature == pytest.approx(temperature, rel=0.1)
        assert found.interval[0] < found.kappa < found.interval[1]


def _coverage(num_draws, **settings):
    inside = 0
    for seed in range(num_draws):
        kappa = (-0.5, 0.3, 1.2)[seed % 3]
        world = _world(seed, kappa=kappa, **settings)
        low, high = ts.measure_logit_prior(*world, deviations=False).interval
        inside += low <= kappa <= high
    return inside / num_draws


def test_carried_prior__interval_covers():
    assert 0.88 <= _coverage(60) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"temperature": 2.0}, {"num_samples": 200}])
def test_carried_prior__interval_covers_at_its_rate(settings):
    assert 0.92 <= _coverage(400, **settings) <= 0.99


def test_carried_prior__is_the_minimum_of_its_equation():
    """Without deviations, against SciPy; the guesses count as one sample."""
    f, y, p_s = _world(0, kappa=0.7, temperature=1.3)
    x, log_p = f.numpy(), (p_s.log() - p_s.log().mean()).numpy()
    log_q = np.log(np.bincount(y, minlength=20) / len(y))

    def objective(parameters):
        log_a, kappa = parameters
        z = np.exp(log_a) * (x - kappa * log_p) + log_q
        loss = np.logaddexp.reduce(z, axis=1) - z[np.arange(len(z)), y]
        return loss.sum() + (log_a**2 + (kappa - 0.5) ** 2) / 2

    log_a, kappa = minimize(objective, [0.0, 0.0], method="Nelder-Mead", tol=1e-9).x
    found = ts.measure_logit_prior(f, y, p_s, deviations=False)
    assert found.kappa == pytest.approx(kappa, abs=1e-5)
    assert found.temperature == pytest.approx(np.exp(-log_a), abs=1e-5)
    torch.testing.assert_close(
        found.prior, (kappa * p_s.log()).softmax(0), atol=1e-6, rtol=0
    )


def test_carried_prior__of_classes_that_deviate():
    """The mean posterior is then near the shares, and nearer the more samples."""
    extra = torch.linspace(-1, 1, 20).roll(7)
    errors = []
    for num_samples in (300, 20_000):
        f, y, p_s = _world(1, kappa=0.5, num_samples=num_samples, extra=extra)
        found = ts.measure_logit_prior(f, y, p_s)
        truth = (0.5 * p_s.log() + extra).softmax(0)
        errors.append((found.prior / truth).log().abs().max().item())
    assert found.spread == pytest.approx(0.55, abs=0.01)
    assert errors[1] < 0.15 < errors[0]
    shares = ts.priors.from_labels(y, 20)
    answer = ts.post_compensate(f, logit_prior=found.prior, target_prior=shares)
    torch.testing.assert_close(answer.softmax(1).mean(0), shares, atol=2e-3, rtol=0)


def test_carried_prior__leaves_noise_alone():
    for seed in range(5):
        assert ts.measure_logit_prior(*_world(seed, kappa=1.0)).spread == 0


def test_carried_prior__does_not_depend_on_the_held_out_mix():
    f, y, p_s = _world(2, kappa=1.0, num_samples=20_000)
    rare = (y > 9) | (torch.arange(len(y)) % 10 == 0)
    low, high = ts.measure_logit_prior(f[rare], y[rare], p_s).interval
    assert low < 1 < high


def test_carried_prior__of_classes_without_samples():
    """Class 3 is not held out, class 5 was not trained on."""
    f, y, p_s = _world(3, kappa=1.0, num_samples=4000)
    f[:, 5], p_s[5] = -torch.inf, 0.0
    kept = (y != 3) & (y != 5)
    found = ts.measure_logit_prior(f[kept], y[kept], p_s / p_s.sum())
    assert found.kappa == pytest.approx(1, abs=0.05)
    assert found.prior[5] == 0
    assert found.prior[3] > 0


def test_carried_prior__of_next_to_nothing_says_so():
    """Three samples, all told right with certainty: any κ may be."""
    f = 50 * torch.eye(3)
    low, high = ts.measure_logit_prior(f, torch.arange(3), [0.7, 0.2, 0.1]).interval
    assert high - low > 2


def test_carried_prior__refuses_another_number_of_classes():
    with pytest.raises(ValueError, match="source_prior") as error:
        ts.measure_logit_prior(torch.zeros(2, 3), torch.tensor([0, 1]), [0.5, 0.5])
    assert (
        str(error.value) == "`source_prior` has 2 entries but `logits` has 3 classes."
    )


def test_declared_kappa__of_the_usual_priors():
    p_s = ts.priors.from_counts([100, 10, 1])
    assert declared_kappa(p_s, p_s) == pytest.approx(1)
    assert declared_kappa(ts.priors.uniform(3), p_s) == 0
    assert declared_kappa((0.4 * p_s.log()).softmax(0), p_s) == pytest.approx(0.4)
    assert declared_kappa(p_s, ts.priors.uniform(3)) == 0


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem[18:])
def test_carried_prior__scores_like_the_declared_one_or_better(path):
    """30 images a class held out, the other 70 scored, all answering for uniform."""
    kept = ts.Predictions.load(path)
    f, y = kept.logits.double(), kept.labels
    rank = torch.zeros_like(y)
    for c in range(100):
        rank[y == c] = torch.arange(100)
    known, rest = rank < 30, rank >= 30
    p_s = ts.priors.from_counts(kept.source_counts)
    found = ts.measure_logit_prior(f[known], y[known], p_s)
    declared, measured = (
        accuracy((f - p.log())[rest], y[rest]) for p in (kept.logit_prior, found.prior)
    )
    assert measured - declared > -0.005
