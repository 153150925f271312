"""What a data set is: three splits in memory, and the class that loads them."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.augmentation import Augmentation
from tailshift.registry import Registry


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels of one split, held in memory."""

    images: Tensor
    """uint8, shape (N, channels, H, W)."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(
                "`images` must be uint8 of shape (N, channels, H, W), but is "
                f"{images.dtype} of shape {tuple(images.shape)}."
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"`labels` must be int64 of shape ({len(images)},), one for each "
                f"image, but is {labels.dtype} of shape {tuple(labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class LongTailedData:
    """A long-tailed training split with the splits it is judged on."""

    name: str
    """The data set's registered name."""

    train: Split
    """Long-tailed: its class counts define the source prior."""

    val: Split | None
    """Drawn from the source distribution; None where the benchmark has none."""

    test: Split
    """Balanced."""

    class_names: tuple[str, ...]
    """One for each class, by class index."""

    mean: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    std: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    augmentation: Augmentation
    """Applied to training images."""

    fingerprint: str
    """Which training images were chosen: see :func:`fingerprint`."""

    def __post_init__(self) -> None:
        for name, split in (
            ("train", self.train),
            ("val", self.val),
            ("test", self.test),
        ):
            if split is not None and len(split):
                _check_labels(name, split.labels, self.num_classes)

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def class_counts(self) -> Tensor:
        """Training images of each class, int64, shape (C,)."""
        return torch.bincount(self.train.labels, minlength=self.num_classes)

    @property
    def in_channels(self) -> int:
        """Channels of an image: 3 for colour, 1 for grey."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> int:
        """Height of the images, which are square."""
        return self.train.images.shape[2]


@dataclass(frozen=True)
class Dataset(ABC):
    """Base of the registered data sets; a subclass's fields are its settings."""

    sentence: ClassVar[str]
    """What the data set is, for lists."""

    @abstractmethod
    def load(self, *, root: Path | None, seed: int) -> LongTailedData:
        """Return the data.

        Args:
            root: The folder that holds the data, for sets that are read from disk.
            seed: The run's seed, for sets whose split is drawn for each run.
        """


DATASETS: Registry[type[Dataset]] = Registry("data set")


def image_hashes(images: NDArray[np.uint8], *, salt: bytes = b"") -> list[bytes]:
    """Return the SHA-256 of each image's pixels followed by `salt`."""
    rows = np.ascontiguousarray(images).reshape(len(images), -1)
    return [hashlib.sha256(row.tobytes() + salt).digest() for row in rows]


def fingerprint(images: Tensor) -> str:
    """Return 16 hex digits that tell which images these are, in whatever order.

    Example:
        >>> images = torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2)
        >>> fingerprint(images) == fingerprint(images.flip(0))
        True
    """
    hashes = sorted(image_hashes(images.numpy()))
    return hashlib.sha256(b"".join(hashes)).hexdigest()[:16]


def _check_labels(split: str, labels: Tensor, num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"`{split}.labels` must be in 0..{num_classes - 1} ({num_classes} class "
            f"names), but run from {low} to {high}."
        )
