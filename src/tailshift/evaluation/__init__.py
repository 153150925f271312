"""Saved logits × target distributions × metrics: plain records and their summary."""

from tailshift.evaluation.records import AS_IS, Record, evaluate
from tailshift.evaluation.sampling import (
    Sampling,
    TestSet,
    class_weighted_error,
    draw_test_set,
    shifted_subset,
    subset_deviation,
)
from tailshift.evaluation.summary import Summary, summarise
from tailshift.priors import read_counts
from tailshift.targets import exact_prior, target_counts

__all__ = [
    "AS_IS",
    "Record",
    "Sampling",
    "Summary",
    "TestSet",
    "class_weighted_error",
    "draw_test_set",
    "evaluate",
    "exact_prior",
    "read_counts",
    "shifted_subset",
    "subset_deviation",
    "summarise",
    "target_counts",
]
