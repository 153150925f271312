"""Estimators of an unknown target prior from unlabelled logits."""

from tailshift.calibration import ConvergenceWarning
from tailshift.estimators.adaptation import Adaptation, ShiftTest, adapt, shift_test
from tailshift.estimators.base import ESTIMATORS, FewSamplesWarning, PriorEstimator
from tailshift.estimators.book import PriorBook
from tailshift.estimators.carried import CarriedPrior, carried_prior, declared_kappa
from tailshift.estimators.confusion import (
    BBSEEstimator,
    ConfusionLikelihoodEstimator,
    RLLSEstimator,
)
from tailshift.estimators.em import EMEstimator
from tailshift.estimators.map_em import MAPEstimator
from tailshift.estimators.online import OnlineEstimator
from tailshift.estimators.tilt import TiltEstimator

__all__ = [
    "ESTIMATORS",
    "Adaptation",
    "BBSEEstimator",
    "CarriedPrior",
    "ConfusionLikelihoodEstimator",
    "ConvergenceWarning",
    "EMEstimator",
    "FewSamplesWarning",
    "MAPEstimator",
    "OnlineEstimator",
    "PriorBook",
    "PriorEstimator",
    "RLLSEstimator",
    "ShiftTest",
    "TiltEstimator",
    "adapt",
    "carried_prior",
    "declared_kappa",
    "shift_test",
]
