import hashlib
from dataclasses import replace

import pytest
import torch

from tailshift.data import DATASETS, Augmentation, Dataset, LongTailedData, Split
from tailshift.data.dataset import fingerprint


def _split(labels=(0, 0, 1)):
    labels = torch.tensor(labels)
    images = torch.arange(len(labels) * 12, dtype=torch.uint8).reshape(-1, 3, 2, 2)
    return Split(images, labels)


def _data(**fields):
    fields = {
        "name": "toy",
        "train": _split(),
        "val": None,
        "test": _split(),
        "class_names": ("a", "b", "c"),
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "augmentation": Augmentation(),
        "fingerprint": "0",
    } | fields
    return LongTailedData(**fields)


def test_long_tailed_data__what_it_knows_of_itself():
    data = _data()
    assert data.num_classes == 3
    assert data.class_counts.tolist() == [2, 1, 0]
    assert data.in_channels == 3
    assert data.image_size == 2
    assert len(data.train) == 3


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_long_tailed_data__labels_out_of_range(name):
    with pytest.raises(ValueError, match="labels") as error:
        _data(**{name: _split((0, 3))})
    assert str(error.value) == (
        f"`{name}.labels` must be in 0..2 (3 class names), but run from 0 to 3."
    )


def test_split__images_of_another_kind():
    with pytest.raises(ValueError, match="images") as error:
        Split(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.int64))
    assert str(error.value) == (
        "`images` must be uint8 of shape (N, channels, H, W), but is torch.float32 of "
        "shape (2, 3, 4)."
    )


def test_split__labels_of_another_length():
    with pytest.raises(ValueError, match="labels") as error:
        replace(_split(), labels=torch.tensor([0, 1]))
    assert str(error.value) == (
        "`labels` must be int64 of shape (3,), one for each image, but is torch.int64 "
        "of shape (2,)."
    )


def test_fingerprint__by_hand():
    """The hash of the sorted hashes of the images' bytes."""
    images = _split().images
    hashes = sorted(
        hashlib.sha256(bytes(i.flatten().tolist())).digest() for i in images
    )
    assert fingerprint(images) == hashlib.sha256(b"".join(hashes)).hexdigest()[:16]


def test_fingerprint__order_does_not_matter_and_pixels_do():
    images = _split().images
    changed = images.clone()
    changed[1, 0, 0, 0] += 1
    assert fingerprint(images) == fingerprint(images[[2, 0, 1]])
    assert fingerprint(images) != fingerprint(changed)
    assert fingerprint(images) != fingerprint(images[:2])


def test_datasets__registered_with_a_sentence():
    assert {"cifar100_lt", "cifar10_lt", "digits_lt"} <= set(DATASETS)
    for name in DATASETS:
        dataset = DATASETS.get(name)
        assert issubclass(dataset, Dataset)
        assert dataset.sentence.endswith(".")


@pytest.mark.parametrize("name", DATASETS.names())
def test_datasets__refuse_wrong_settings_before_reading(name):
    with pytest.raises(ValueError, match="imbalance_ratio") as error:
        DATASETS.get(name)(imbalance_ratio=0.02)
    assert str(error.value) == (
        "`imbalance_ratio` must be >= 1 (largest / smallest count), but is 0.02. "
        "Did you mean 50?"
    )
    with pytest.raises(ValueError, match="profile") as error:
        DATASETS.get(name)(profile="steps")
    assert str(error.value) == (
        "unknown profile 'steps'; did you mean 'step'? Known: exponential, step"
    )
