"""Folds of samples, of which each clone is trained without one."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

ALWAYS_TRAINED = -1
"""The fold of samples that are never held out."""


def fold_parts(
    folds: NDArray[np.int64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the samples that each clone sees, and those held out."""
    numbers = np.unique(folds[folds != ALWAYS_TRAINED])
    if not len(numbers):
        yield np.arange(len(folds)), np.arange(0)
    for fold in numbers:
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
