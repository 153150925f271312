"""Saved logits × target distributions × metrics: plain records and their summary."""

from tailshift.evaluation.records import AS_IS, Record, evaluate
from tailshift.evaluation.sampling import (
    Sampling,
    TestSet,
    draw_test_set,
    shifted_subset,
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
    "draw_test_set",
    "evaluate",
    "exact_prior",
    "read_counts",
    "shifted_subset",
    "summarise",
    "target_counts",
]
