"""Small files in the layout of the public CIFAR archives."""

import pickle

import numpy as np
import pytest
from PIL import Image


def _write(path, table, as_bytes=False):
    if as_bytes:
        table = {key.encode(): value for key, value in table.items()}
    path.write_bytes(pickle.dumps(table, protocol=2))


def _write_cifar100(root, *, per_class=12, as_bytes=False, order=None):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", per_class), ("test", 2)):
        labels = np.tile(np.arange(100), count)
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        if name == "train" and order is not None:
            data, labels = data[order], labels[order]
        table = {"batch_label": name, "data": data, "fine_labels": labels.tolist()}
        _write(folder / name, table, as_bytes)
    names = [f"name {c}" for c in range(100)]
    _write(folder / "meta", {"fine_label_names": names}, as_bytes)
    return folder


def _write_cifar10(root, *, as_bytes=False):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels = np.tile(np.arange(10), 4)
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        table = {"batch_label": name, "data": data, "labels": labels.tolist()}
        _write(folder / name, table, as_bytes)
    names = [f"name {c}" for c in range(10)]
    _write(folder / "batches.meta", {"label_names": names}, as_bytes)
    return folder


def _change(path, **entries):
    table = pickle.loads(path.read_bytes()) | entries
    _write(path, {key: value for key, value in table.items() if value is not None})


@pytest.fixture
def write_cifar100():
    """Write 12 training and 2 test images a class; `order` shuffles the former."""
    return _write_cifar100


@pytest.fixture
def write_cifar10():
    """Write 20 training and 4 test images a class."""
    return _write_cifar10


@pytest.fixture
def change_file():
    """Replace entries of a file, or take away those given as None."""
    return _change


def _write_image(path, *, seed=0, size=(40, 32), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


_LAYOUTS = {
    "imagenet_lt": ("ImageNet_LT_{}.txt", "{split}/n{c:08}/n{c:08}_{i}.JPEG"),
    "places_lt": ("Places_LT_{}.txt", "{split}_256/s/scene_{c}/{i:08}.jpg"),
    "inaturalist2018": ("iNaturalist18_{}.txt", "{split}2018/Aves/{c}/{i}.jpg"),
}


def _write_benchmark(root, name, *, counts=(5, 3, 2), per_class=2):
    list_name, pattern = _LAYOUTS[name]
    splits = {"train": counts, "val": [per_class] * len(counts)}
    if name != "inaturalist2018":
        splits["test"] = [per_class] * len(counts)
    for split, split_counts in splits.items():
        lines = []
        for c, count in enumerate(split_counts):
            for i in range(count):
                path = pattern.format(split=split, c=c, i=i)
                _write_image(root / path, seed=len(lines))
                lines.append(f"{path} {c}\n")
        (root / list_name.format(split)).write_text("".join(lines))
    return root


@pytest.fixture
def write_image():
    """Write one image of random pixels; the suffix decides the format."""
    return _write_image


@pytest.fixture
def write_benchmark():
    """Write lists and JPEGs in the layout of a large benchmark, cut down."""
    return _write_benchmark
