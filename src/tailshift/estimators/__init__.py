"""Estimators of an unknown target prior from unlabelled logits."""

from typing import TYPE_CHECKING

from tailshift.calibration import ConvergenceWarning
from tailshift.deprecation import old_names
from tailshift.estimators.adaptation import (
    Adaptation,
    RepeatedSamplesWarning,
    adapt,
)
from tailshift.estimators.base import ESTIMATORS, FewSamplesWarning, PriorEstimator
from tailshift.estimators.book import SitePriors
from tailshift.estimators.carried import (
    CarriedPrior,
    declared_kappa,
    measure_logit_prior,
)
from tailshift.estimators.certificate import Certificate, Performance, certify
from tailshift.estimators.conformal import ConformalSets
from tailshift.estimators.confusion import (
    BBSEEstimator,
    ConfusionLikelihoodEstimator,
    RLLSEstimator,
)
from tailshift.estimators.em import EMEstimator
from tailshift.estimators.map_em import MAPEstimator
from tailshift.estimators.online import OnlineEstimator
from tailshift.estimators.shift_test import ShiftTest, shift_test
from tailshift.estimators.tilt import TiltEstimator

__all__ = [
    "ESTIMATORS",
    "Adaptation",
    "BBSEEstimator",
    "CarriedPrior",
    "Certificate",
    "ConformalSets",
    "ConfusionLikelihoodEstimator",
    "ConvergenceWarning",
    "EMEstimator",
    "FewSamplesWarning",
    "MAPEstimator",
    "OnlineEstimator",
    "Performance",
    "PriorEstimator",
    "RLLSEstimator",
    "RepeatedSamplesWarning",
    "ShiftTest",
    "SitePriors",
    "TiltEstimator",
    "adapt",
    "certify",
    "declared_kappa",
    "measure_logit_prior",
    "shift_test",
]

if not TYPE_CHECKING:
    __getattr__ = old_names(
        __name__,
        {
            "PriorBook": "tailshift.estimators.SitePriors",
            "carried_prior": "tailshift.estimators.measure_logit_prior",
        },
    )
