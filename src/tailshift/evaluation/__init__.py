"""Saved logits × target distributions × metrics: plain records and their summary."""

from tailshift.evaluation.records import AS_IS, Record, evaluate
from tailshift.evaluation.summary import Summary, summarise
from tailshift.evaluation.targets import (
    read_counts,
    resolve_target,
    shifted_subset,
    target_prior,
)

__all__ = [
    "AS_IS",
    "Record",
    "Summary",
    "evaluate",
    "read_counts",
    "resolve_target",
    "shifted_subset",
    "summarise",
    "target_prior",
]
