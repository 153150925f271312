"""Serving: predictions of a trained run for image files, under any target prior."""

from tailshift.serving.estimation import (
    ShiftReport,
    Unlabelled,
    certify,
    estimate,
    estimate_shift,
    read_unlabelled,
)
from tailshift.serving.image_predictions import Answers, predict
from tailshift.serving.images import ImageLogits, image_logits, image_paths
from tailshift.serving.prediction_table import answer_rows, write_answers

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
