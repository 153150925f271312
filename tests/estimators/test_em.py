"""EM: by hand, against a loop, against QuaPy, and against the truth."""

import numpy as np
import pytest
import torch

from tailshift import priors
from tailshift.estimators import ConvergenceWarning, EMEstimator


def _reference_em(posteriors, denominator, num_iter):
    """The plain iteration, sample by sample."""
    q = list(denominator)
    for _ in range(num_iter):
        total = [0.0] * len(q)
        for p in posteriors:
            joint = [
                q_c / m_c * p_c for q_c, m_c, p_c in zip(q, denominator, p, strict=True)
            ]
            for c, value in enumerate(joint):
                total[c] += value / sum(joint)
        q = [value / len(posteriors) for value in total]
    return q


def _fit(mixture, num_held_out=3000, **settings):
    f, y = mixture.draw(mixture.source_prior, num_held_out, seed=100)
    return EMEstimator(source_prior=mixture.source_prior, **settings).fit(f, y)


def test_em__worked_example():
    """Certain posteriors: the estimate is the share of each class, 3 : 1."""
    f = 100 * torch.eye(2, dtype=torch.float64)
    em = EMEstimator(calibrator=None).fit(f.repeat(10, 1), torch.tensor([0, 1] * 10))
    q = em.estimate(f[[0, 0, 0, 1]])
    torch.testing.assert_close(q, torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert em.converged_


def test_em__agrees_with_the_loop(mixture):
    mixture = mixture(4)
    em = _fit(mixture)
    f, _ = mixture.draw(priors.uniform(4), 60, seed=1)
    p = em.posterior(f)
    expected = _reference_em(p.tolist(), em.denominator_.tolist(), 3000)
    np.testing.assert_allclose(em.estimate(f), expected, atol=1e-5)


def test_em__agrees_with_quapy(mixture, monkeypatch):
    # It asks for a folder of its own, in the home folder, when it is imported.
    pytest.importorskip("quapy", reason="QuaPy is a development extra")
    from quapy.method.aggregative import EMQ

    monkeypatch.setattr(EMQ, "MAX_ITER", 100_000)
    mixture = mixture(10)
    em = _fit(mixture, tolerance=1e-12)
    f, _ = mixture.draw(priors.uniform(10), 1000, seed=1)
    ours = em.estimate(f)
    theirs, _ = EMQ.EM(em.denominator_.numpy(), em.posterior(f).numpy(), epsilon=1e-14)
    np.testing.assert_allclose(ours, theirs, atol=1e-7)


def test_em__error_falls_as_one_over_root_n(mixture):
    mixture = mixture(5)
    target = priors.from_counts([1, 2, 3, 2, 4])
    em = _fit(mixture, num_held_out=100_000, calibrator=None)

    def error(num_samples):
        errors = [
            (em.estimate(mixture.draw(target, num_samples, seed)[0]) - target)
            .abs()
            .sum()
            for seed in range(30)
        ]
        return torch.stack(errors).mean().item()

    small, medium, large = error(200), error(800), error(3200)
    assert 1.6 < small / medium < 2.5
    assert 1.6 < medium / large < 2.5


def test_em__calibration_is_used_in_the_iterations(mixture):
    overconfident = mixture(5, sharpness=2.5)
    target = priors.from_counts([1, 2, 3, 2, 4])
    f, _ = overconfident.draw(target, 4000, seed=1)
    errors = {
        calibrator: (_fit(overconfident, calibrator=calibrator).estimate(f) - target)
        .abs()
        .sum()
        for calibrator in ("bcts", None)
    }
    assert errors["bcts"] < 0.6 * errors[None]


def test_em__float32_is_accurate(mixture, monkeypatch):
    mixture = mixture(20)
    em = _fit(mixture)
    f, _ = mixture.draw(priors.uniform(20), 2000, seed=1)
    exact = em.estimate(f)
    monkeypatch.setattr("tailshift.estimators.posteriors.EXACT_ELEMENTS", 0)
    torch.testing.assert_close(em.estimate(f), exact, rtol=0, atol=1e-6)


def test_em__says_when_it_has_not_converged(mixture):
    mixture = mixture(10)
    em = _fit(mixture, max_iter=4)
    f, _ = mixture.draw(priors.uniform(10), 500, seed=1)
    with pytest.warns(ConvergenceWarning) as caught:
        em.estimate(f)
    assert not em.converged_
    assert str(caught[0].message) == (
        "EMEstimator has not converged after 3 passes over the data; "
        "its estimate may be off. Raise max_iter."
    )
    assert caught[0].filename == __file__


def test_interval__covers_and_is_not_far_wider_than_that_of_labels(mixture):
    mixture = mixture(4)
    target = priors.from_counts([1, 2, 2, 3])
    inside, widths = [], []
    for seed in range(40):
        f, y = mixture.draw(mixture.source_prior, 400, seed=1000 + seed)
        em = EMEstimator(source_prior=mixture.source_prior).fit(f, y)
        em.estimate(mixture.draw(target, 400, seed)[0])
        low, high = em.interval_
        inside.append((low <= target) & (target <= high))
        widths.append((high - low).mean())
    assert torch.stack(inside).double().mean() >= 0.9
    of_labels = 2 * 1.96 * (target * (1 - target) / 400).sqrt().mean()
    assert torch.stack(widths).mean() < 2 * of_labels
