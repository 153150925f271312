"""γ by both samples: near the truth, and less off where held-out samples are few."""

import numpy as np
import pytest
import torch

from tailshift.estimators import MAPEstimator, TiltEstimator
from tailshift.estimators.tilt import _peak, tilted


def test_peak__of_a_parabola():
    x = torch.linspace(-1, 1, 5).double()
    assert _peak(x, -((x - 0.3) ** 2)) == pytest.approx(0.3)
    assert _peak(x, x) == 1.0
    assert _peak(x, torch.zeros(5)) == -1.0


@pytest.mark.filterwarnings("ignore::tailshift.estimators.FewSamplesWarning")
def test_joint_gamma__errs_less_than_the_plug_in(mixture):
    mixture, gamma = mixture(20, imbalance_ratio=20.0), -0.8
    source = mixture.source_prior
    errors = []
    for seed in range(5):
        f, y = mixture.draw(source, 600, seed=1000 + seed)
        x, _ = mixture.draw(tilted(source, gamma), 3000, seed)
        row = []
        for estimator in (TiltEstimator, MAPEstimator):
            fitted = estimator(source_prior=source, calibrator=None)
            fitted.fit(f, y)
            fitted.estimate(x)
            row.append(abs(fitted.gamma_ - gamma))
        errors.append(row)
    plug_in, joint = np.mean(errors, axis=0)
    assert joint < 0.1
    assert joint < plug_in + 0.005
