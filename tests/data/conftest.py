"""Small files in the layout of the public CIFAR archives."""

import pickle

import numpy as np
import pytest


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
    """Write 12 training and 2 test images per class; `order` shuffles the former."""
    return _write_cifar100


@pytest.fixture
def write_cifar10():
    """Write 20 training and 4 test images per class."""
    return _write_cifar10


@pytest.fixture
def change_file():
    """Replace entries of a file, or take away those given as None."""
    return _change
