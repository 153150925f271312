"""What a data set is: three splits, and the class that loads them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from tailshift.data.split import Split
from tailshift.registry import Registry


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
    """Balanced in the benchmarks; drawn from the source distribution where it was held
    out."""

    class_names: tuple[str, ...]
    """One for each class, by class index."""

    fingerprint: str
    """Which training images these are: the training split's fingerprint."""

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
        return self.train.in_channels

    @property
    def image_size(self) -> int:
        """Height of the loaded images, which are square."""
        return self.train.image_size

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]."""
        return self.train.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]."""
        return self.train.std


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


def _check_labels(split: str, labels: Tensor, num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"`{split}.labels` must be in 0..{num_classes - 1} ({num_classes} class "
            f"names), but run from {low} to {high}."
        )
