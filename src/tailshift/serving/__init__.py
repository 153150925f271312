"""Serving: a trained run's answers for image files, and for a class mix that moved."""

from tailshift.serving.estimation import (
    ShiftReport,
    Unlabelled,
    estimate_shift,
    read_unlabelled,
)
from tailshift.serving.images import (
    ImageLogits,
    answer_rows,
    image_logits,
    image_paths,
    write_answers,
)

__all__ = [
    "ImageLogits",
    "ShiftReport",
    "Unlabelled",
    "answer_rows",
    "estimate_shift",
    "image_logits",
    "image_paths",
    "read_unlabelled",
    "write_answers",
]
