"""Data sets of Hugging Face's package, written by it and read as training data."""

from pathlib import Path
from typing import Any

import pytest

from tailshift.data import ImageDatasets

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
NAMES = ["kea", "tui"]


def _images(tmp_path: Path, write_image: Any, labels: list[int], first: int) -> Any:
    paths = [
        str(write_image(tmp_path / "pictures" / f"{first + i}.png", seed=first + i))
        for i in range(len(labels))
    ]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    )
    return datasets.Dataset.from_dict({"image": paths, "label": labels}, features)


def test_load__saved_to_disk(tmp_path: Path, write_image: Any) -> None:
    train = _images(tmp_path, write_image, [0, 0, 0, 1, 1], 0)
    test = _images(tmp_path, write_image, [1, 0], 5)
    splits = datasets.DatasetDict({"train": train.select([4, 0, 1, 2]), "test": test})
    splits.save_to_disk(tmp_path / "saved")
    data = ImageDatasets(path=str(tmp_path / "saved"), val_fraction=0).load()
    assert data.class_names == ("kea", "tui")
    assert data.train.labels.tolist() == [1, 0, 0, 0]
    assert data.test.labels.tolist() == [1, 0]
    kept = data.train.images.read(0)
    assert kept == (tmp_path / "pictures" / "4.png").read_bytes()


def test_load__by_its_name(tmp_path: Path, write_image: Any, monkeypatch: Any) -> None:
    """A folder of Parquet files stands in for the hub, which names likewise."""
    whole = _images(tmp_path, write_image, [0, 1] * 6, 0)
    (tmp_path / "birds").mkdir()
    embedded = whole.map(
        lambda x: {"image": {"bytes": Path(x["image"].filename).read_bytes()}}
    )
    embedded.to_parquet(tmp_path / "birds" / "train-00000-of-00001.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = ImageDatasets(path=str(tmp_path / "birds")).load()
    assert data.class_names == ("kea", "tui")
    assert len(data.train) + len(data.val) + len(data.test) == 12


def test_load__refuses_other_columns(tmp_path: Path, write_image: Any) -> None:
    whole = _images(tmp_path, write_image, [0, 1], 0).rename_column("label", "bird")
    whole.save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="columns") as error:
        ImageDatasets(path=str(tmp_path / "saved")).load()
    assert str(error.value) == (
        f"`{tmp_path / 'saved'}` must have the columns image and label, but has image, "
        "bird. Name them with data.image_column and data.label_column."
    )


def test_load__refuses_splits_without_train(tmp_path: Path, write_image: Any) -> None:
    whole = _images(tmp_path, write_image, [0, 1], 0)
    datasets.DatasetDict({"test": whole}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="train") as error:
        ImageDatasets(path=str(tmp_path / "saved")).load()
    assert str(error.value) == (
        f"`{tmp_path / 'saved'}` must have a split train, but has test."
    )
