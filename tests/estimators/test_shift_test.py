"""The shift test: its rate of false alarms, and what it sees."""

import sys

import numpy as np
import pytest
import torch

from tailshift import priors
from tailshift.estimators import ShiftTest, shift_test
from tailshift.estimators.tilt import tilted


def _p_values(mixture, target, num_draws, sizes=(200, 300)):
    found = []
    for seed in range(num_draws):
        held_out, _ = mixture.draw(mixture.source_prior, sizes[0], seed=1000 + seed)
        x, _ = mixture.draw(target, sizes[1], seed)
        test = shift_test(held_out, x, mixture.source_prior, num_permutations=199)
        found.append((test.p_value, test.tilt_p_value, test.class_p_value))
    return np.array(found)


def test_shift_test__false_alarms_come_at_the_level(mixture):
    mixture = mixture(8)
    p = _p_values(mixture, mixture.source_prior, 100)
    for level in (0.05, 0.2):
        assert (p[:, 0] <= level).mean() == pytest.approx(
            level, abs=2.6 * (level * (1 - level) / 100) ** 0.5
        )


@pytest.mark.parametrize("sizes", [(200, 300), (300, 100)])
def test_shift_test__sees_tilts_and_permuted_tails(mixture, sizes):
    mixture = mixture(8)
    source = mixture.source_prior
    tilt = _p_values(mixture, tilted(source, 0.3), 20, sizes)
    assert (tilt[:, 0] < 0.05).mean() > 0.8
    permuted = source[[3, 1, 0, 2, 7, 5, 6, 4]]
    assert (_p_values(mixture, permuted, 20, sizes)[:, 0] < 0.05).mean() > 0.8


def test_shift_test__uniform_source_has_no_tilt(mixture):
    f = torch.randn(50, 3)
    test = shift_test(f[:20], f[20:], priors.uniform(3))
    assert test.tilt_p_value == 1.0


def test_shift_test__identical_logits_and_single_samples_show_nothing():
    f = torch.zeros(30, 4)
    prior = priors.from_counts([4, 3, 2, 1])
    assert shift_test(f[:10], f[10:], prior).p_value == 1.0
    assert shift_test(f[:1], f[1:2], prior).p_value == 1.0


def test_shift_test__looks_at_a_part_of_many_samples(mixture, monkeypatch):
    mixture = mixture(4)
    a, _ = mixture.draw(mixture.source_prior, 3000, seed=0)
    b, _ = mixture.draw(mixture.source_prior.flip(0), 3000, seed=1)
    module = sys.modules["tailshift.estimators.shift_test"]  # not the function
    monkeypatch.setattr(module, "MOST_ELEMENTS", 400)
    assert shift_test(a, b, mixture.source_prior).p_value < 0.01


@pytest.mark.parametrize("value", [0.0, 3.7, [1.0, 2.0, 0.3]])
def test_shift_test__constant_logits_are_no_shift(value):
    """What differs between the two sets is rounding alone, which sums tell apart."""
    logits = torch.zeros(137, 3) + torch.tensor(value)
    found = shift_test(logits[:100], logits[100:], [0.5, 0.3, 0.2])
    assert found == ShiftTest(p_value=1.0, tilt_p_value=1.0, class_p_value=1.0)
