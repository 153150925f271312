"""Estimators of an unknown target prior from unlabelled logits."""

from tailshift.calibration import ConvergenceWarning
from tailshift.estimators.adaptation import Adaptation, adapt
from tailshift.estimators.base import FewSamplesWarning, PriorEstimator
from tailshift.estimators.bbse import BBSEEstimator
from tailshift.estimators.confusion_likelihood import ConfusionLikelihoodEstimator
from tailshift.estimators.em import EMEstimator
from tailshift.estimators.map_em import MAPEstimator
from tailshift.estimators.online import OnlineEstimator
from tailshift.estimators.rlls import RLLSEstimator
from tailshift.estimators.shift_test import ShiftTest, shift_test
from tailshift.estimators.tilt import TiltEstimator

__all__ = [
    "Adaptation",
    "BBSEEstimator",
    "ConfusionLikelihoodEstimator",
    "ConvergenceWarning",
    "EMEstimator",
    "FewSamplesWarning",
    "MAPEstimator",
    "OnlineEstimator",
    "PriorEstimator",
    "RLLSEstimator",
    "ShiftTest",
    "TiltEstimator",
    "adapt",
    "shift_test",
]
