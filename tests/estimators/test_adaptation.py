"""Adapting in one call: when it follows the estimate, and when it keeps still."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tailshift import Predictions, priors
from tailshift.estimators import MAPEstimator, adapt
from tailshift.estimators.adaptation import _judge


def _held_out(mixture, num_samples=1000):
    f, y = mixture.draw(mixture.source_prior, num_samples, seed=100)
    counts = (1e6 * mixture.source_prior).long()
    return Predictions(f, y, counts, mixture.source_prior)


def test_adapt__follows_a_shift(mixture):
    mixture = mixture(6, imbalance_ratio=10.0)
    target = mixture.source_prior.flip(0)
    found = adapt(_held_out(mixture), mixture.draw(target, 600, seed=1)[0])
    assert found.is_adapted
    assert found.target_prior is found.estimated_prior
    assert (found.target_prior - target).abs().sum() < 0.2
    assert found.gamma == pytest.approx(-1, abs=0.2)
    assert found.gamma_interval[0] < -1 < found.gamma_interval[1]
    assert found.p_value < 0.01
    assert found.interval is None
    assert found.reason == (
        f"a shift is seen in 600 samples (p = {found.p_value:.3f}): "
        "the estimated prior is used."
    )


def test_adapt__announces_its_phases(mixture):
    mixture, phases = mixture(6, imbalance_ratio=10.0), []
    new, _ = mixture.draw(mixture.source_prior, 300, seed=1)
    adapt(_held_out(mixture), new, with_interval=True, announce=phases.append)
    assert phases == [
        "calibrating on 1,000 held-out samples",
        "estimating 6 shares from 300 samples",
        "testing for a shift",
        "computing the interval of the tilt",
        "computing the intervals of the shares",
    ]


def test_adapt__keeps_the_source_prior_where_there_is_no_shift(mixture):
    mixture = mixture(6, imbalance_ratio=10.0)
    source = mixture.source_prior
    kept = [
        not adapt(_held_out(mixture), mixture.draw(source, 300, seed)[0]).is_adapted
        for seed in range(10)
    ]
    assert sum(kept) >= 9


def test_adapt__one_sample_changes_nothing(mixture):
    mixture = mixture(6, imbalance_ratio=10.0)
    held_out = _held_out(mixture)
    found = adapt(held_out, mixture.draw(priors.uniform(6), 1, seed=1)[0])
    assert not found.is_adapted
    assert held_out.source_counts is not None
    torch.testing.assert_close(
        found.target_prior, priors.from_counts(held_out.source_counts)
    )
    assert found.reason.startswith("no shift is seen in 1 sample (p = ")


def test_adapt__interval_and_estimator_of_ones_own(mixture):
    mixture = mixture(3, imbalance_ratio=3.0)
    own = MAPEstimator(source_prior=mixture.source_prior, center="uniform")
    x = mixture.draw(priors.uniform(3), 200, seed=1)[0].numpy()
    found = adapt(_held_out(mixture), x, estimator=own, with_interval=True)
    assert found.interval is not None
    assert found.interval.shape == (2, 3)
    torch.testing.assert_close(own.center_, priors.uniform(3))


def test_judge__says_why():
    assert _judge(0.31, 0.05, 1.0, 0.5, 20) == (
        False,
        "no shift is seen in 20 samples (p = 0.31): the source prior is kept.",
    )
    assert _judge(0.01, 0.05, -0.1, 0.5, 20) == (
        False,
        "a shift is seen in 20 samples (p = 0.010), but no estimate explains it better "
        "than the source prior on samples left out: the source prior is kept.",
    )
    assert _judge(0.001, 0.05, 0.1, 12.7, 20) == (
        False,
        "a shift is seen in 20 samples (p = 0.001), but too little is known to say how "
        "far it goes (head against tail to a factor of 3e+05): the source prior is "
        "kept.",
    )
    assert _judge(0.001, 0.05, 0.1, 0.5, 20) == (
        True,
        "a shift is seen in 20 samples (p = 0.001): the estimated prior is used.",
    )


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [1.0, 2.0, 0.3]])
@pytest.mark.parametrize("num_target", [1, 50, 200])
def test_adapt__one_sample_many_times(row, num_target):
    """Nothing tells one tilt from another: all are within the interval."""
    logits = torch.tensor(row).repeat(200, 1)
    counts = torch.tensor([100, 10, 1])
    held_out = Predictions(logits, torch.arange(200) % 3, source_counts=counts)
    found = adapt(held_out, logits[:num_target], with_interval=True)
    assert found.gamma_interval == (-math.inf, math.inf)
    assert found.p_value == 1
    assert not found.is_adapted
    assert torch.allclose(found.target_prior, counts.double() / 111)


MANY_CLASSES = """
import torch, warnings
from pathlib import Path
from tailshift import Predictions, adapt

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if "VmHWM" in line)

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
held_out = Predictions(torch.randn(2000, 2000), torch.arange(2000))
new = torch.randn(2000, 2000)
held_out.logits.diagonal().add_(9.0)
new[:, :1000].diagonal().add_(9.0)
adapt(Predictions(torch.randn(60, 3), torch.arange(60) % 3), torch.randn(60, 3))
before = peak()
adapt(held_out, new)
print((peak() - before) / new.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_adapt__many_classes_take_bounded_memory():
    """Two thousand of them: 19 times the logits; the first call is for its imports."""
    command = [sys.executable, "-c", MANY_CLASSES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 1 < float(done.stdout) < 25
