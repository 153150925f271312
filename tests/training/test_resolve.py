"""A validation split held out of the training images."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tailshift.data import DigitsLT, FileSplit, LongTailedData, MemorySplit
from tailshift.data.images import ImageFiles
from tailshift.training import with_validation


@pytest.fixture
def data() -> LongTailedData:
    return replace(DigitsLT().load(root=None, seed=0), val=None)


def _images(split: object) -> Tensor:
    assert isinstance(split, MemorySplit)
    return split.images


def test_with_validation__takes_a_tenth_of_each_class(data: LongTailedData) -> None:
    """Of 100, 64, 41, 27, 17, 11, 7, 4, 3, 2: a tenth, rounded, but at least one."""
    held = with_validation(data, 0.1)
    assert held.val is not None
    counts = torch.bincount(held.val.labels)
    assert counts.tolist() == [10, 6, 4, 3, 2, 1, 1, 1, 1, 1]
    assert torch.equal(held.class_counts + counts, data.class_counts)


def test_with_validation__splits_the_images(data: LongTailedData) -> None:
    held = with_validation(data, 0.1)
    together = torch.cat([_images(held.train), _images(held.val)]).flatten(1)
    whole = _images(data.train).flatten(1)
    assert torch.equal(together.unique(dim=0), whole.unique(dim=0))
    assert len(together) == len(whole)


def test_with_validation__leaves_the_test_split_alone(data: LongTailedData) -> None:
    held = with_validation(data)
    assert held.test is data.test
    assert held.fingerprint == held.train.fingerprint() != data.fingerprint


def test_with_validation__is_a_function_of_the_seed(data: LongTailedData) -> None:
    first, again, other = (with_validation(data, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_with_validation__keeps_a_single_image_in_training(
    data: LongTailedData,
) -> None:
    rows = torch.cat([torch.arange(9), (data.train.labels == 1).nonzero()[0]])
    held = with_validation(replace(data, train=data.train.subset(rows)), 0.5)
    assert held.class_counts.tolist()[:2] == [4, 1]
    assert held.val is not None
    assert held.val.labels.tolist() == [0] * 5


def test_with_validation__refuses_a_second_one(data: LongTailedData) -> None:
    with pytest.raises(ValueError, match="data") as error:
        with_validation(replace(data, val=data.test))
    assert str(error.value) == (
        "`data` must have no validation split, but digits_lt has one of 500 images."
    )


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_with_validation__refuses_no_share(
    data: LongTailedData, fraction: float
) -> None:
    with pytest.raises(ValueError, match="fraction") as error:
        with_validation(data, fraction)
    assert str(error.value) == f"`fraction` must be in (0, 1), but is {fraction:g}."


def test_with_validation__holds_out_the_same_images_as_ever(
    data: LongTailedData,
) -> None:
    """By the pixels of images in memory, by the paths of files."""
    held = with_validation(data)
    assert held.val is not None
    assert held.train.fingerprint() == "7dbf34edea7908b3"
    assert held.val.fingerprint() == "167a2b27119261e0"
    paths = tuple(f"{i}.jpg" for i in range(12))
    files = FileSplit(ImageFiles(Path("nowhere"), paths), torch.arange(12) % 2)
    held = with_validation(replace(data, train=files), 0.3)
    assert held.val is not None
    assert held.val.keys() == ("3.jpg", "4.jpg", "6.jpg", "9.jpg")
