"""BBSE, RLLS and the likelihood of predicted classes, against oracles."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tailshift import priors
from tailshift.estimators import (
    BBSEEstimator,
    ConfusionLikelihoodEstimator,
    RLLSEstimator,
)
from tailshift.estimators.confusion import least_norms


def _reference_confusion(p, y, is_soft):
    num_classes = p.shape[1]
    joint = np.zeros((num_classes, num_classes))
    for row, label in zip(p, y, strict=True):
        if is_soft:
            joint[:, label] += row
        else:
            joint[row.argmax(), label] += 1
    return joint / len(y)


def _setting(mixture, num_classes=5):
    mixture = mixture(num_classes)
    held_out = mixture.draw(mixture.source_prior, 3000, seed=100)
    target = priors.from_counts(list(range(1, num_classes + 1)))
    return mixture, held_out, target, mixture.draw(target, 3000, seed=1)[0]


@pytest.mark.parametrize("is_soft", [False, True])
def test_bbse__is_least_squares(mixture, is_soft):
    mixture, (f, y), target, x = _setting(mixture)
    bbse = BBSEEstimator(source_prior=mixture.source_prior, is_soft=is_soft, ridge=0.0)
    q = bbse.fit(f, y).estimate(x).numpy()
    joint = _reference_confusion(bbse.posterior(f).numpy(), y.numpy(), is_soft)
    np.testing.assert_allclose(bbse.confusion_, joint, atol=1e-12)
    p = bbse.posterior(x).numpy()
    mu = p.mean(0) if is_soft else np.bincount(p.argmax(1), minlength=5) / len(p)
    weights = np.linalg.lstsq(joint, mu, rcond=None)[0]  # importance weights
    np.testing.assert_allclose(q, weights * joint.sum(0), atol=1e-8)
    assert np.abs(q - target.numpy()).sum() < 0.1


def test_bbse__leaves_a_class_without_samples_at_its_source_share(mixture):
    mixture, (f, y), _, _ = _setting(mixture)
    seen = y != 4
    bbse = BBSEEstimator(source_prior=mixture.source_prior)
    with pytest.warns(UserWarning, match="class 4 with 0"):
        bbse.fit(f[seen], y[seen])
    q = bbse.estimate(f[seen])
    assert q[4] == pytest.approx(mixture.source_prior[4].item(), abs=0.02)


def test_least_norms__is_the_minimum():
    g = np.random.default_rng(0)
    a, b = g.normal(size=(6, 6)), g.normal(size=6)
    for delta in (0.01, 0.3, 1.0):

        def objective(theta, delta=delta):
            return np.linalg.norm(a @ theta - b) + delta * np.linalg.norm(theta)

        theta, _ = least_norms(torch.from_numpy(a), torch.from_numpy(b), delta)
        best = min(
            minimize(
                objective,
                start,
                method="Nelder-Mead",
                options={
                    "maxiter": 20_000,
                    "maxfev": 20_000,
                    "xatol": 1e-9,
                    "fatol": 1e-12,
                },
            ).fun
            for start in (theta.numpy(), np.linalg.solve(a, b))
        )
        assert objective(theta.numpy()) == pytest.approx(best, abs=1e-6)


def test_least_norms__a_heavy_penalty_leaves_nothing():
    theta, _ = least_norms(torch.eye(3).double(), torch.ones(3).double(), 10.0)
    assert theta.abs().max() < 1e-6


def test_rlls__recovers_the_target_and_shrinks_to_the_held_out_prior(mixture):
    mixture, held_out, target, x = _setting(mixture)
    source = mixture.source_prior
    light = RLLSEstimator(source_prior=source, beta=0.001).fit(*held_out).estimate(x)
    heavy = RLLSEstimator(source_prior=source, beta=100.0).fit(*held_out).estimate(x)
    assert (light - target).abs().sum() < 0.1
    held_out_prior = priors.from_labels(held_out[1], len(source))
    torch.testing.assert_close(heavy, held_out_prior, rtol=0, atol=1e-6)


def test_confusion_likelihood__is_the_maximum_on_the_simplex(mixture):
    mixture, (f, y), target, x = _setting(mixture, num_classes=3)
    estimator = ConfusionLikelihoodEstimator(
        source_prior=mixture.source_prior, is_soft=False
    ).fit(f, y)
    q = estimator.estimate(x).numpy()
    joint = estimator.confusion_.numpy()
    mu = np.bincount(estimator.posterior(x).argmax(1), minlength=3) / len(x)

    def value(q):
        return mu @ np.log(joint / joint.sum(0) @ q)

    steps = np.linspace(0.001, 0.998, 150)
    grid = [np.array([s, t, 1 - s - t]) for s in steps for t in steps if s + t < 0.999]
    assert value(q) >= max(map(value, grid)) - 1e-6
    assert np.abs(q - target.numpy()).sum() < 0.15


def test_confusion_likelihood__a_dirichlet_prior_pulls_to_uniform(mixture):
    mixture, held_out, _, x = _setting(mixture)
    distances = [
        (
            ConfusionLikelihoodEstimator(
                source_prior=mixture.source_prior, dirichlet=dirichlet
            )
            .fit(*held_out)
            .estimate(x)
            - priors.uniform(5)
        )
        .abs()
        .sum()
        for dirichlet in (1.0, 100.0, 1e6)
    ]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.01
    with pytest.raises(ValueError, match="dirichlet") as error:
        ConfusionLikelihoodEstimator(dirichlet=0.5)
    assert str(error.value) == "`dirichlet` must be at least 1, but is 0.5."
