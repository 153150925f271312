import pytest
import torch

from tailshift.data import DATASETS, Dataset, LongTailedData, MemorySplit


def _split(labels=(0, 0, 1)):
    labels = torch.tensor(labels)
    images = torch.arange(len(labels) * 12, dtype=torch.uint8).reshape(-1, 3, 2, 2)
    return MemorySplit(images, labels, (0.5,) * 3, (0.25,) * 3)


def _data(**fields):
    fields = {
        "name": "toy",
        "train": _split(),
        "val": None,
        "test": _split(),
        "class_names": ("a", "b", "c"),
        "fingerprint": "0",
    } | fields
    return LongTailedData(**fields)


def test_long_tailed_data__what_it_knows_of_itself():
    data = _data()
    assert data.num_classes == 3
    assert data.class_counts.tolist() == [2, 1, 0]
    assert data.in_channels == 3
    assert data.image_size == 2
    assert data.mean == (0.5,) * 3
    assert data.std == (0.25,) * 3
    assert len(data.train) == 3


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_long_tailed_data__labels_out_of_range(name):
    with pytest.raises(ValueError, match="labels") as error:
        _data(**{name: _split((0, 3))})
    assert str(error.value) == (
        f"`{name}.labels` must be in 0..2 (3 class names), but run from 0 to 3."
    )


def test_datasets__registered_with_a_sentence():
    assert DATASETS.names() == [
        *("cifar100_lt", "cifar10_lt", "csv", "datasets", "digits_lt"),
        *("features", "folder"),
        *("imagenet_lt", "inaturalist2018", "list", "parquet", "places_lt"),
    ]
    for name in DATASETS:
        dataset = DATASETS.get(name)
        assert issubclass(dataset, Dataset)
        assert dataset.sentence.endswith(".")


@pytest.mark.parametrize("name", ["cifar100_lt", "cifar10_lt", "digits_lt"])
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
