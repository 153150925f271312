"""SQUAREM: the same fixed point as plain steps, in fewer, and never downhill."""

from itertools import pairwise

import torch

from tailshift.estimators.likelihood import Step, maximise, squarem, sum_over
from tailshift.estimators.posteriors import Posteriors


def _problem(num_samples=400, num_classes=6, noise=1.0):
    g = torch.Generator().manual_seed(0)
    f = noise * torch.randn(num_samples, num_classes, generator=g, dtype=torch.float64)
    return Posteriors.of(f.softmax(1)), torch.full(
        (num_classes, 1), 1 / num_classes
    ).double()


def _plain(samples, m, num_iter):
    q = m.clone()
    for _ in range(num_iter):
        q = q * sum_over(samples, q / m, None).per_class / m / samples.num_samples
    return q


def test_squarem__finds_what_plain_em_finds_in_a_tenth_of_the_steps():
    samples, m = _problem()
    found = maximise(samples, m, start=m, tolerance=1e-10)
    slow = _plain(samples, m, 20 * found.num_iter)
    assert found.converged
    value = sum_over(samples, found.x / m, None).log_u
    assert (
        value
        >= sum_over(samples, _plain(samples, m, 10 * found.num_iter) / m, None).log_u
        - 1e-6
    )
    torch.testing.assert_close(found.x, slow, rtol=0, atol=1e-3)


def test_squarem__never_lowers_the_objective():
    samples, m = _problem()
    values = []

    def step(x, active):
        q = x / x.sum(0)
        sums = sum_over(samples, q / m, None)
        gain = sums.per_class / m / samples.num_samples
        values.append(sums.log_u.item())
        return Step(q * gain, sums.log_u, gain.amax(0) - 1)

    squarem(step, m, tolerance=1e-9, max_iter=300)
    starts = values[0::3]  # each cycle's first point is the best so far
    assert all(b >= a - 1e-9 for a, b in pairwise(starts))


def test_squarem__columns_are_independent():
    samples, m = _problem()
    weights = torch.randint(3, (400, 3), dtype=torch.uint8)
    together = maximise(samples, m, start=m.repeat(1, 3), weights=weights)
    for k in range(3):
        alone = maximise(samples, m, start=m, weights=weights[:, [k]])
        torch.testing.assert_close(together.x[:, [k]], alone.x, rtol=0, atol=1e-5)


def test_maximise__bounds_what_is_left_to_gain():
    samples, m = _problem()
    best = sum_over(samples, maximise(samples, m, start=m, tolerance=1e-12).x / m, None)
    for tolerance in (1e-2, 1e-4):
        found = maximise(samples, m, start=m, tolerance=tolerance)
        left = best.log_u - sum_over(samples, found.x / m, None).log_u
        assert 0 <= left.item() / samples.num_samples <= tolerance
