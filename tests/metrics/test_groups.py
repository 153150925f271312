import numpy as np
import pytest
import torch

from tailshift.metrics import class_groups
from tailshift.priors import long_tailed_counts


def test_class_groups__borders():
    groups = class_groups(np.array([101, 100, 20, 19, 0, 500]))
    assert {name: classes.tolist() for name, classes in groups.items()} == {
        "many": [0, 5],
        "medium": [1, 2],
        "few": [3, 4],
    }


@pytest.mark.paper
@pytest.mark.parametrize(
    ("imbalance_ratio", "sizes"),
    [(100, [35, 35, 30]), (50, [41, 41, 18]), (10, [69, 31, 0])],
)
def test_class_groups__of_cifar_100_lt(imbalance_ratio, sizes):
    groups = class_groups(long_tailed_counts(500, imbalance_ratio, 100))
    assert [len(classes) for classes in groups.values()] == sizes


def test_class_groups__other_borders():
    groups = class_groups([5, 4, 3, 2, 1], many=3, few=3)
    assert [classes.tolist() for classes in groups.values()] == [[0, 1], [2], [3, 4]]


@pytest.mark.parametrize(
    ("arguments", "exception", "message"),
    [
        (
            {"class_counts": [1, 2], "many": 10},
            ValueError,
            "`many` must be at least `few`, but is 10 against 20.",
        ),
        (
            {"class_counts": [3, -2]},
            ValueError,
            "`class_counts` must not be negative, but is -2 for class 1.",
        ),
        (
            {"class_counts": torch.tensor([0.5, 0.5])},
            TypeError,
            "`class_counts` must be integers, but are torch.float32.",
        ),
    ],
)
def test_class_groups__refuses_with_a_sentence(arguments, exception, message):
    with pytest.raises(exception) as error:
        class_groups(**arguments)
    assert str(error.value) == message
