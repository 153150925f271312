"""Estimators of an unknown target prior from unlabelled logits."""

from tailshift.calibration import ConvergenceWarning
from tailshift.estimators.adaptation import (
    Adaptation,
    RepeatedSamplesWarning,
    adapt,
)
from tailshift.estimators.base import ESTIMATORS, FewSamplesWarning, PriorEstimator
from tailshift.estimators.book import PriorBook
from tailshift.estimators.carried import CarriedPrior, carried_prior, declared_kappa
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
    "PriorBook",
    "PriorEstimator",
    "RLLSEstimator",
    "RepeatedSamplesWarning",
    "ShiftTest",
    "TiltEstimator",
    "adapt",
    "carried_prior",
    "certify",
    "declared_kappa",
    "shift_test",
]
