"""CIFAR-100-LT and CIFAR-10-LT: the public files, read, then thinned to a long tail."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data import dataset
from tailshift.data.memory import Augmentation, MemorySplit, image_hashes
from tailshift.data.safe_pickle import load_plain_pickle
from tailshift.data.strong_augmentation import Augment, augment_policy, check_cutout
from tailshift.priors import check_imbalance_ratio
from tailshift.registry import Registry

Subset: TypeAlias = Literal["hashed", "official_seed1"]

# CIFAR-10's, for both sets: what the paper's numbers were made with.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)

IMAGE_SIZE = 32
"""Height and width of the images."""

NUM_TRAIN = 50_000
"""Training images of either set before it is thinned."""


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


@dataclass(frozen=True)
class CIFARLT(dataset.Dataset):
    """What the two have in common; `layout` tells them apart."""

    layout: ClassVar[Layout]

    imbalance_ratio: float = 100.0
    """Largest / smallest training count, >= 1."""

    profile: dataset.Profile = "exponential"
    """How the counts fall over the classes."""

    subset: Subset = "hashed"
    """Which images a class keeps: see :func:`hashed_subset` and
    :func:`official_subset`."""

    subset_seed: int | None = None
    """Seed of the draw of training images, for ``hashed``; None is the run's seed."""

    rotate: float = 0.0
    """Degrees that training images are turned by at most, either way."""

    augment: Augment = "crop_flip"
    """Augmentation of training images: shift by up to 4 pixels and flip
    (``"crop_flip"``), then AutoAugment with the policy learnt on CIFAR-10 (``"auto"``)
    or RandAugment (``"rand"``)."""

    cutout: int = 0
    """Side in pixels of a random square of each training image that is set to the mean
    pixel; 0 for none."""

    def __post_init__(self) -> None:
        check_imbalance_ratio(self.imbalance_ratio)
        dataset.PROFILES.get(self.profile)
        SUBSETS.get(self.subset)
        augment_policy(self.augment)
        check_cutout(self.cutout, IMAGE_SIZE)
        if not 0 <= self.rotate <= 180:
            raise ValueError(
                f"`rotate` must be in [0, 180] degrees, but is {self.rotate:g}."
            )

    @property
    def augmentation(self) -> Augmentation:
        """What is done to images in training."""
        return Augmentation(
            padding=4,
            flip=True,
            rotation=self.rotate,
            policy=augment_policy(self.augment),
            cutout=self.cutout,
        )

    def load(
        self, *, root: Path | None = None, seed: int = 0
    ) -> dataset.LongTailedData:
        """Return the data, after a download if it is missing.

        Args:
            root: The folder that holds the archive's folder; None takes the
                environment variable ``TAILSHIFT_DATA``.
            seed: Draws the training images unless ``subset_seed`` is set.
        """
        folder = find_folder(self.layout, root)
        images, labels = read_split(folder, self.layout.train_files, self.layout)
        kept = self._kept(images, labels, folder, seed)
        augmentation = self.augmentation
        train = MemorySplit(images[kept], labels[kept], MEAN, STD, augmentation)
        test = read_split(folder, self.layout.test_files, self.layout)
        return dataset.LongTailedData(
            name=self.name,
            train=train,
            val=None,
            test=MemorySplit(*test, MEAN, STD, augmentation),
            class_names=read_names(folder, self.layout),
            fingerprint=train.fingerprint(),
        )

    def known_shape(self) -> dataset.DataShape:
        """Return the counts that the profile gives."""
        num_classes = self.layout.num_classes
        largest = NUM_TRAIN // num_classes
        counts = dataset.profile_counts(
            self.profile, largest, self.imbalance_ratio, num_classes
        )
        return dataset.DataShape(counts, image_size=IMAGE_SIZE)

    def _kept(
        self, images: Tensor, labels: Tensor, folder: Path, seed: int
    ) -> NDArray[np.int64]:
        """Return the positions of the training images that the profile keeps."""
        num_classes, y = self.layout.num_classes, labels.numpy()
        counts = dataset.profile_counts(
            self.profile, len(y) // num_classes, self.imbalance_ratio, num_classes
        ).numpy()
        there = np.bincount(y, minlength=num_classes)
        if (there < counts).any():
            c = int((there < counts).argmax())
            raise ValueError(
                f"`{folder}` must hold {counts[c]} training images of class {c}, but "
                f"holds {there[c]}. Fetch {self.layout.archive} again."
            )
        drawn = seed if self.subset_seed is None else self.subset_seed
        return SUBSETS.get(self.subset)(images.numpy(), y, counts, drawn)


@dataset.DATASETS.register("cifar100_lt")
@dataclass(frozen=True)
class CIFAR100LT(CIFARLT):
    """CIFAR-100-LT: 500 down to 500 / imbalance_ratio images per class, 100 classes."""

    sentence: ClassVar[str] = (
        "32×32 colour photographs, CIFAR-100 thinned to a long tail; 100 classes."
    )
    layout: ClassVar[Layout] = CIFAR100


@dataset.DATASETS.register("cifar10_lt")
@dataclass(frozen=True)
class CIFAR10LT(CIFARLT):
    """CIFAR-10-LT: 5000 down to 5000 / imbalance_ratio images per class, 10 classes."""

    sentence: ClassVar[str] = (
        "32×32 colour photographs, CIFAR-10 thinned to a long tail; 10 classes."
    )
    layout: ClassVar[Layout] = CIFAR10


SubsetRule: TypeAlias = Callable[
    [NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], int], NDArray[np.int64]
]
SUBSETS: Registry[SubsetRule] = Registry("subset")


@SUBSETS.register("hashed")
def hashed_subset(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    subset_seed: int,
) -> NDArray[np.int64]:
    """Return the positions of the first n_c images of each class by SHA-256.

    The hash is over the pixels and the seed, so the images chosen do not depend on
    the file's order, and a steeper profile keeps a subset of a flatter one's images.
    """
    hashes = image_hashes(images, salt=str(subset_seed).encode())
    chosen = []
    for label, count in enumerate(counts):
        positions = np.flatnonzero(labels == label)
        chosen.extend(sorted(positions, key=hashes.__getitem__)[:count])
    return np.array(chosen, dtype=np.int64)


@SUBSETS.register("official_seed1")
def official_subset(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    subset_seed: int,
) -> NDArray[np.int64]:
    """Return the positions that the paper's authors trained on.

    Legacy NumPy seed 1; class after class, shuffle the positions in file order and
    keep the first n_c. It is theirs only if the files have the public order.
    """
    rng = np.random.RandomState(1)
    chosen = []
    for label, count in enumerate(counts):
        positions = np.flatnonzero(labels == label)
        rng.shuffle(positions)
        chosen.append(positions[:count])
    return np.concatenate(chosen)


def find_folder(layout: Layout, root: Path | None) -> Path:
    """Return the folder of the files, after a download if there is none.

    Args:
        layout: Which CIFAR.
        root: The folder around it, or it itself; None takes ``TAILSHIFT_DATA``.
    """
    root = dataset.data_root(root)
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
