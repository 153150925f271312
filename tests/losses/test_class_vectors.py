"""Counts and weights: every sentence compared whole."""

import math

import pytest
import torch

from tailshift.losses.checks import as_class_counts, as_weights
from tailshift.losses.reduction import weigh


def test_as_class_counts__keeps_large_counts_exact():
    assert as_class_counts([2**40 + 1, 1]).tolist() == [2**40 + 1, 1]
    assert as_class_counts([3, 0], positive=False).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("counts", "kind", "sentence"),
    [
        (
            [3, -1],
            ValueError,
            "`class_counts` must be finite and not negative, but is -1 for class 1.",
        ),
        (
            [math.inf, 1],
            ValueError,
            "`class_counts` must be finite and not negative, but is inf for class 0.",
        ),
        (
            [1, 0, 1, 0, 0],
            ValueError,
            "`class_counts` must be positive for every class, but is 0 for classes "
            "1, 3 and 4 (5 classes). Drop them or give them samples.",
        ),
        (
            [0] * 20 + [1],
            ValueError,
            "`class_counts` must be positive for every class, but is 0 for classes "
            "0, 1, 2, 3, 4, 5, 6, 7 and 12 more (21 classes). "
            "Drop them or give them samples.",
        ),
        (
            [[1, 2]],
            ValueError,
            "`class_counts` must be a vector with one entry a class, "
            "but has shape (1, 2).",
        ),
        (
            "many",
            TypeError,
            "`class_counts` must be a tensor, an array or a list of numbers, "
            "but is str.",
        ),
    ],
)
def test_as_class_counts__says_what_is_wrong(counts, kind, sentence):
    with pytest.raises(kind) as error:
        as_class_counts(counts)
    assert str(error.value) == sentence


def test_as_weights__says_what_is_wrong():
    with pytest.raises(ValueError, match=r"^`") as error:
        as_weights([1.0, math.nan])
    assert str(error.value) == (
        "`class_weights` must be finite and not negative, but is nan for class 1."
    )


def test_weigh__multiplies_by_the_labels_weight():
    losses, labels = torch.tensor([1.0, 2.0]), torch.tensor([1, 0])
    assert weigh(losses, labels, torch.tensor([3.0, 5.0])).tolist() == [5.0, 6.0]
    assert weigh(losses, labels, None) is losses
