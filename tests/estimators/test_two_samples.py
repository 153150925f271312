"""The joint likelihood: its value, its maximum, and what it is for."""

import math

import pytest
import torch

from tailshift import priors
from tailshift.estimators.likelihood import joint_scores, maximise, maximise_jointly
from tailshift.estimators.posteriors import Posteriors


def _reference_likelihood(target, held_out, q, m):
    ratio = len(target) / len(held_out)
    total = 0.0
    for p in target.tolist():
        u = sum(q_c / m_c * p_c for q_c, m_c, p_c in zip(q, m, p, strict=True))
        total += math.log(ratio * u / (1 + ratio * u))
    for p in held_out.tolist():
        u = sum(q_c / m_c * p_c for q_c, m_c, p_c in zip(q, m, p, strict=True))
        total += math.log(1 / (1 + ratio * u))
    return total


def _samples(mixture, num_held_out=300, num_samples=500):
    mixture = mixture(3)
    held_out, _ = mixture.draw(mixture.source_prior, num_held_out, seed=0)
    target, _ = mixture.draw(priors.from_counts([1, 3, 2]), num_samples, seed=1)
    return target.softmax(1), held_out.softmax(1)


def _solve(target, held_out, strength=0.0):
    center = priors.uniform(3)[:, None]
    found = maximise_jointly(
        Posteriors.of(target),
        Posteriors.of(held_out),
        start=center,
        denominator=held_out.mean(0)[:, None],
        pseudo_counts=strength * center,
        tolerance=1e-9,
    )
    assert found.converged
    return (half[:, 0] for half in found.x.chunk(2))


def test_joint_scores__sum_to_the_reference(mixture):
    target, held_out = _samples(mixture)
    q, m = torch.tensor([0.2, 0.5, 0.3]).double(), held_out.mean(0)
    ratio = len(target) / len(held_out)
    value = joint_scores(target @ (q / m), ratio, is_target=True).sum()
    value += joint_scores(held_out @ (q / m), ratio, is_target=False).sum()
    expected = _reference_likelihood(target, held_out, q.tolist(), m.tolist())
    assert value.item() == pytest.approx(expected, abs=1e-8)


def test_maximise_jointly__is_a_maximum(mixture):
    target, held_out = _samples(mixture)
    q, m = _solve(target, held_out)
    value = _reference_likelihood(target, held_out, q.tolist(), m.tolist())
    # Only q / m enters the likelihood: any other ratio must be worse.
    g = torch.Generator().manual_seed(0)
    for scale in (0.3, 0.03, 0.003):
        for _ in range(20):
            moved = q * (scale * torch.randn(3, generator=g).double()).exp()
            other = _reference_likelihood(target, held_out, moved.tolist(), m.tolist())
            assert other <= value + 1e-6


def test_maximise_jointly__with_many_held_out_samples_is_em(mixture):
    target, held_out = _samples(mixture, num_held_out=60_000, num_samples=400)
    q, m = _solve(target, held_out)
    mean = held_out.mean(0)
    em = maximise(Posteriors.of(target), mean[:, None], start=mean[:, None]).x[:, 0]
    torch.testing.assert_close(q, em, rtol=0, atol=0.01)
    torch.testing.assert_close(m, mean, rtol=0, atol=0.01)


def test_maximise_jointly__pseudo_counts_hold_the_center(mixture):
    q, _ = _solve(*_samples(mixture), strength=1e7)
    torch.testing.assert_close(q, priors.uniform(3), rtol=0, atol=1e-3)
