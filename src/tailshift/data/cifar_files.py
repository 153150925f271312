"""The public CIFAR files: find or download them, read them, check what they hold."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.dataset import data_root
from tailshift.data.safe_pickle import load_plain_pickle


@dataclass(frozen=True)
class Layout:
    """Where a public CIFAR archive keeps things."""

    title: str
    folder: str
    archive: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    names_file: str
    labels_key: str
    names_key: str
    num_classes: int

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are read."""
        return (*self.train_files, *self.test_files, self.names_file)


CIFAR100 = Layout(
    title="CIFAR100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train_files=("train",),
    test_files=("test",),
    names_file="meta",
    labels_key="fine_labels",
    names_key="fine_label_names",
    num_classes=100,
)
CIFAR10 = Layout(
    title="CIFAR10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train_files=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test_files=("test_batch",),
    names_file="batches.meta",
    labels_key="labels",
    names_key="label_names",
    num_classes=10,
)


def find_folder(layout: Layout, root: Path | None) -> Path:
    """Return the folder of the files, after a download if there is none.

    Args:
        layout: Which CIFAR.
        root: The folder around it, or it itself; None takes ``TAILSHIFT_DATA``.
    """
    root = data_root(root)
    folder = root if root.name == layout.folder else root / layout.folder
    fault = "" if folder.exists() else _download(layout, folder.parent)
    missing = [name for name in layout.files if not (folder / name).is_file()]
    if fault or missing:
        raise FileNotFoundError(
            f"`{folder}` must hold the files of {layout.title}, but "
            f"{fault or 'has no ' + ', '.join(missing)}. Unpack {layout.archive} of "
            f"https://www.cs.toronto.edu/~kriz/cifar.html in `{folder.parent}`."
        )
    return folder


def _download(layout: Layout, root: Path) -> str:
    """Fetch and unpack the archive; return what went wrong, for the error's text."""
    from torchvision import datasets  # slow to import: only when needed

    try:
        getattr(datasets, layout.title)(root, download=True)
    except (OSError, RuntimeError) as error:  # no network, no space, a broken archive
        return f"is missing and the download failed ({error})"
    return ""


def read_split(
    folder: Path, names: tuple[str, ...], layout: Layout
) -> tuple[Tensor, Tensor]:
    """Return images, (N, 3, 32, 32), and labels, (N,), of the files, in file order."""
    parts = [_read_batch(folder / name, layout) for name in names]
    pixels = np.concatenate([pixels for pixels, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    images = torch.from_numpy(pixels).reshape(-1, 3, 32, 32)
    return images, torch.from_numpy(labels)


def read_names(folder: Path, layout: Layout) -> tuple[str, ...]:
    """Return the class names by class index."""
    path, key = folder / layout.names_file, layout.names_key
    values = _read_table(path, layout, key)[key]
    values = values if isinstance(values, list | tuple) else ()
    names = tuple(_text(name) for name in values if isinstance(name, str | bytes))
    if len(names) != layout.num_classes:
        raise ValueError(
            f"`{key}` in `{path}` must be {layout.num_classes} names, but are "
            f"{len(names)}. Fetch {layout.archive} again."
        )
    return names


def _read_batch(
    path: Path, layout: Layout
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    table = _read_table(path, layout, "data", layout.labels_key)
    pixels = _as_array(table["data"])
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise ValueError(
            f"`data` in `{path}` must be uint8 of shape (N, 3072), but is "
            f"{pixels.dtype} of shape {pixels.shape}. Fetch {layout.archive} again."
        )
    labels = _as_array(table[layout.labels_key])
    _check_labels(labels, len(pixels), path, layout)
    return pixels, labels.astype(np.int64)


def _check_labels(
    labels: NDArray[Any], num_images: int, path: Path, layout: Layout
) -> None:
    if labels.dtype.kind not in "iu" or labels.shape != (num_images,):
        raise ValueError(
            f"`{layout.labels_key}` in `{path}` must be {num_images} integers, one "
            f"for each image, but is {labels.dtype} of shape {labels.shape}. Fetch "
            f"{layout.archive} again."
        )
    low, high = labels.min(initial=0), labels.max(initial=0)
    if low < 0 or high >= layout.num_classes:
        raise ValueError(
            f"`{layout.labels_key}` in `{path}` must be in 0..{layout.num_classes - 1}"
            f", but run from {low} to {high}. Fetch {layout.archive} again."
        )


def _read_table(path: Path, layout: Layout, *keys: str) -> dict[str, Any]:
    table = load_plain_pickle(path)
    if not isinstance(table, dict):
        raise ValueError(
            f"`{path}` must hold a dict, but holds a {type(table).__name__}. Fetch "
            f"{layout.archive} again."
        )
    found = {
        _text(key): value
        for key, value in table.items()
        if isinstance(key, str | bytes)
    }
    for key in keys:
        if key not in found:
            raise ValueError(
                f"`{path}` must have the key {key!r}, but has {sorted(found)}. Fetch "
                f"{layout.archive} again."
            )
    return found


def _as_array(values: object) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError, RecursionError):  # uneven lists, …
        return np.array(None)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
