"""What a model answered on a held-out set: checked once, kept in one file."""

from tailshift.predictions.checks import (
    ArrayLike,
    as_tensor,
    check_counts,
    check_logits,
    check_probs,
    check_sample_labels,
)
from tailshift.predictions.predictions import Predictions

__all__ = [
    "ArrayLike",
    "Predictions",
    "as_tensor",
    "check_counts",
    "check_logits",
    "check_probs",
    "check_sample_labels",
]
