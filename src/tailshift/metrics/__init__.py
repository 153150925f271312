"""How right a classifier is, and how far its probabilities can be trusted."""

from tailshift.metrics.accuracy import (
    accuracy,
    group_accuracy,
    macro_f1,
    top_k_accuracy,
)
from tailshift.metrics.bootstrap import Interval, bootstrap_intervals
from tailshift.metrics.calibration_error import expected_calibration_error
from tailshift.metrics.classwise import classwise_calibration_error
from tailshift.metrics.groups import class_groups
from tailshift.metrics.proper_scores import brier_score, negative_log_likelihood
from tailshift.metrics.reliability import ReliabilityDiagram, reliability_diagram

__all__ = [
    "Interval",
    "ReliabilityDiagram",
    "accuracy",
    "bootstrap_intervals",
    "brier_score",
    "class_groups",
    "classwise_calibration_error",
    "expected_calibration_error",
    "group_accuracy",
    "macro_f1",
    "negative_log_likelihood",
    "reliability_diagram",
    "top_k_accuracy",
]
