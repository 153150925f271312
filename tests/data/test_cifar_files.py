import pickle
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torchvision

from tailshift.data.cifar import (
    CIFAR10,
    CIFAR100,
    find_folder,
    read_names,
    read_split,
)

AGAIN = "Fetch cifar-100-python.tar.gz again."
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"


def _read_train_message(folder):
    with pytest.raises(ValueError, match="must") as error:
        read_split(folder, CIFAR100.train_files, CIFAR100)
    return str(error.value)


def test_read_split__rows_are_channels_then_rows_then_columns(
    tmp_path, write_cifar10, change_file
):
    """Byte 1024·channel + 32·row + column; here the bytes count modulo 251."""
    folder = write_cifar10(tmp_path)
    data = (np.arange(3072) % 251).astype(np.uint8)[None]
    change_file(folder / "test_batch", data=data, labels=[3])
    images, labels = read_split(folder, CIFAR10.test_files, CIFAR10)
    assert images[0, 2, 5, 7] == (2 * 1024 + 5 * 32 + 7) % 251
    assert labels.tolist() == [3]


@pytest.mark.parametrize("layout", [CIFAR100, CIFAR10], ids=["cifar100", "cifar10"])
def test_read__keys_may_be_bytes(tmp_path, layout, request):
    write = request.getfixturevalue(f"write_{layout.title.lower()}")
    text, raw = write(tmp_path / "text"), write(tmp_path / "raw", as_bytes=True)
    a, b = (read_split(f, layout.train_files, layout) for f in (text, raw))
    assert all(x.equal(y) for x, y in zip(a, b, strict=True))
    assert read_names(text, layout) == read_names(raw, layout)


def test_read_names__names_may_be_bytes(tmp_path, write_cifar100, change_file):
    folder = write_cifar100(tmp_path)
    change_file(folder / "meta", fine_label_names=[b"apple"] * 100)
    assert read_names(folder, CIFAR100) == ("apple",) * 100


def test_find_folder__from_root_environment_or_the_folder_itself(
    tmp_path, monkeypatch, write_cifar100
):
    folder = write_cifar100(tmp_path)
    monkeypatch.setenv("TAILSHIFT_DATA", str(tmp_path))
    assert find_folder(CIFAR100, None) == folder
    monkeypatch.setenv("TAILSHIFT_DATA", "elsewhere")
    assert find_folder(CIFAR100, tmp_path) == folder
    assert find_folder(CIFAR100, folder) == folder


@pytest.mark.parametrize("value", [None, ""])
def test_find_folder__no_root(monkeypatch, value):
    monkeypatch.delenv("TAILSHIFT_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("TAILSHIFT_DATA", value)
    with pytest.raises(ValueError, match="root") as error:
        find_folder(CIFAR100, None)
    assert str(error.value) == (
        "`root` must name the folder of the data, but is None and the environment "
        "variable TAILSHIFT_DATA is not set. Set it, or pass --data-root DIR."
    )


def test_find_folder__downloads_what_is_missing(tmp_path, monkeypatch, write_cifar100):
    def fake(root, download):
        assert download
        write_cifar100(Path(root))

    monkeypatch.setattr(torchvision.datasets, "CIFAR100", fake)
    folder = find_folder(CIFAR100, tmp_path / "new")
    assert folder == tmp_path / "new" / "cifar-100-python"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (URLError("no route to host"), "<urlopen error no route to host>"),
        (RuntimeError("File not found or corrupted."), "File not found or corrupted."),
    ],
)
def test_find_folder__download_fails(tmp_path, monkeypatch, fault, text):
    def fail(root, download):
        raise fault

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fail)
    with pytest.raises(FileNotFoundError) as error:
        find_folder(CIFAR10, tmp_path)
    assert str(error.value) == (
        f"`{tmp_path / 'cifar-10-batches-py'}` must hold the files of CIFAR10, but is "
        f"missing and the download failed ({text}). Unpack cifar-10-python.tar.gz of "
        f"{HOME} in `{tmp_path}`."
    )


def test_find_folder__a_file_is_missing_and_nothing_is_overwritten(
    tmp_path, monkeypatch, write_cifar100
):
    monkeypatch.setattr(torchvision.datasets, "CIFAR100", None)  # must not be called
    folder = write_cifar100(tmp_path)
    (folder / "meta").unlink()
    (folder / "test").unlink()
    with pytest.raises(FileNotFoundError) as error:
        find_folder(CIFAR100, tmp_path)
    assert str(error.value) == (
        f"`{folder}` must hold the files of CIFAR100, but has no test, meta. Unpack "
        f"cifar-100-python.tar.gz of {HOME} in `{tmp_path}`."
    )


PIXELS_RULE = "must be uint8 of shape (N, 3072), but is"
LABELS_RULE = "must be 1200 integers, one for each image, but is"


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("data", np.zeros((9, 3071), "u1"), f"{PIXELS_RULE} uint8 of shape (9, 3071)"),
        (
            "data",
            np.zeros((9, 3072), "f4"),
            f"{PIXELS_RULE} float32 of shape (9, 3072)",
        ),
        (
            "data",
            np.zeros((9, 3, 32, 32), "u1"),
            f"{PIXELS_RULE} uint8 of shape (9, 3, 32, 32)",
        ),
        ("fine_labels", [0, 1], f"{LABELS_RULE} int64 of shape (2,)"),
        ("fine_labels", [0.5] * 1200, f"{LABELS_RULE} float64 of shape (1200,)"),
        ("fine_labels", [[1, 2], [3]], f"{LABELS_RULE} object of shape ()"),
        ("fine_labels", "cat", f"{LABELS_RULE} <U3 of shape ()"),
        (
            "fine_labels",
            [100] + [0] * 1199,
            "must be in 0..99, but run from 0 to 100",
        ),
        ("fine_labels", [-1] + [0] * 1199, "must be in 0..99, but run from -1 to 0"),
    ],
    ids=[
        *("pixels: columns", "pixels: dtype", "pixels: shape"),
        *("labels: too few", "labels: floats", "labels: uneven", "labels: text"),
        *("labels: too high", "labels: negative"),
    ],
)
def test_read_split__refuses(tmp_path, write_cifar100, change_file, key, value, fault):
    folder = write_cifar100(tmp_path)
    change_file(folder / "train", **{key: value})
    assert _read_train_message(folder) == (
        f"`{key}` in `{folder / 'train'}` {fault}. {AGAIN}"
    )


def test_read_split__a_key_is_missing(tmp_path, write_cifar100, change_file):
    folder = write_cifar100(tmp_path)
    change_file(folder / "train", fine_labels=None)
    assert _read_train_message(folder) == (
        f"`{folder / 'train'}` must have the key 'fine_labels', but has "
        f"['batch_label', 'data']. {AGAIN}"
    )


def test_read_split__no_dict(tmp_path, write_cifar100):
    folder = write_cifar100(tmp_path)
    (folder / "train").write_bytes(pickle.dumps([1, 2]))
    assert _read_train_message(folder) == (
        f"`{folder / 'train'}` must hold a dict, but holds a list. {AGAIN}"
    )


def test_read_split__a_file_that_would_run_code(tmp_path, write_cifar100):
    folder = write_cifar100(tmp_path)
    (folder / "train").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert _read_train_message(folder) == (
        f"`{folder / 'train'}` must hold only arrays, lists, strings, numbers and "
        "dicts, but asks for os.system. Fetch the file again from a source you trust."
    )


def test_read_names__too_few(tmp_path, write_cifar100, change_file):
    folder = write_cifar100(tmp_path)
    change_file(folder / "meta", fine_label_names=["apple"])
    with pytest.raises(ValueError, match="names") as error:
        read_names(folder, CIFAR100)
    assert str(error.value) == (
        f"`fine_label_names` in `{folder / 'meta'}` must be 100 names, but are 1. "
        f"{AGAIN}"
    )
