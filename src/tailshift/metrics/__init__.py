"""How right a classifier is: all classes, groups of classes, top-k, macro-F1."""

from tailshift.metrics.accuracy import (
    accuracy,
    group_accuracy,
    macro_f1,
    top_k_accuracy,
)
from tailshift.metrics.groups import class_groups

__all__ = ["accuracy", "class_groups", "group_accuracy", "macro_f1", "top_k_accuracy"]
