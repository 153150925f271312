"""What is known of the data before it is read."""

import pytest

from tailshift.data import CIFAR10LT, CIFAR100LT, Dataset, DigitsLT, PlacesLT
from tailshift.paper.duration import data_shape
from tailshift.recipes import load_recipe


@pytest.mark.parametrize(
    ("dataset", "num_samples", "num_classes", "ratio", "image_size"),
    [
        (CIFAR100LT(imbalance_ratio=100), 10_847, 100, 100, 32),
        (CIFAR100LT(imbalance_ratio=10), 19_573, 100, 10, 32),
        (CIFAR10LT(imbalance_ratio=100, profile="step"), 25_250, 10, 100, 32),
        (PlacesLT(), 62_500, 365, 996, 224),
        (PlacesLT(image_size=112), 62_500, 365, 996, 112),
    ],
)
def test_known_shape__of_benchmarks(
    dataset: Dataset, num_samples: int, num_classes: int, ratio: float, image_size: int
) -> None:
    shape = dataset.known_shape()
    assert shape is not None
    assert (shape.num_samples, shape.num_classes) == (num_samples, num_classes)
    assert (shape.imbalance_ratio, shape.image_size) == (ratio, image_size)
    assert shape.in_channels == 3


def test_known_shape__is_none_where_the_data_decides() -> None:
    assert DigitsLT().known_shape() is None
    assert PlacesLT(check_counts=False).known_shape() is None


def test_data_shape__reads_what_is_not_known() -> None:
    shape = data_shape(load_recipe("digits_lt"))
    assert shape.class_counts.tolist() == [100, 64, 41, 27, 17, 11, 7, 4, 3, 2]
    assert (shape.in_channels, shape.image_size) == (1, 8)
