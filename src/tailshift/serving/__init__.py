"""Serving: a trained run's answers for image files, and for a class mix that moved."""

from tailshift.serving.estimation import (
    ShiftReport,
    Unlabelled,
    certify,
    estimate,
    estimate_shift,
    read_unlabelled,
)
from tailshift.serving.images import (
    Answers,
    ImageLogits,
    answer_rows,
    image_logits,
    image_paths,
    predict,
    write_answers,
)

__all__ = [
    "Answers",
    "ImageLogits",
    "ShiftReport",
    "Unlabelled",
    "answer_rows",
    "certify",
    "estimate",
    "estimate_shift",
    "image_logits",
    "image_paths",
    "predict",
    "read_unlabelled",
    "write_answers",
]
