"""How right a classifier is, and how far its probabilities can be trusted."""

from tailshift.metrics.accuracy import (
    accuracy,
    class_groups,
    group_accuracy,
    macro_f1,
    top_k_accuracy,
)
from tailshift.metrics.bootstrap import Interval, bootstrap_intervals
from tailshift.metrics.calibration_error import (
    ReliabilityDiagram,
    expected_calibration_error,
    reliability_diagram,
)
from tailshift.metrics.classwise import classwise_calibration_error
from tailshift.metrics.sample_scores import brier_score, negative_log_likelihood
from tailshift.metrics.table import METRICS, Metric

__all__ = [
    "METRICS",
    "Interval",
    "Metric",
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
