"""CIFAR-100-LT and CIFAR-10-LT: the public files, thinned to a long tail."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data import cifar_files, dataset
from tailshift.data.memory import Augmentation, MemorySplit, image_hashes
from tailshift.priors import check_imbalance_ratio
from tailshift.registry import Registry

Subset: TypeAlias = Literal["hashed", "official_seed1"]

# CIFAR-10's, for both sets: what the paper's numbers were made with.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)

NUM_TRAIN = 50_000
"""Training images of either set before it is thinned."""


@dataclass(frozen=True)
class CIFARLT(dataset.Dataset):
    """What the two have in common; `layout` tells them apart."""

    layout: ClassVar[cifar_files.Layout]

    imbalance_ratio: float = 100.0
    """Largest / smallest training count, >= 1."""

    profile: dataset.Profile = "exponential"
    """How the counts fall over the classes."""

    subset: Subset = "hashed"
    """Which images a class keeps: see :func:`hashed_subset` and
    :func:`official_subset`."""

    subset_seed: int = 0
    """Another seed chooses other images; only for ``hashed``."""

    rotate: float = 0.0
    """Degrees that training images are turned by at most, either way."""

    def __post_init__(self) -> None:
        check_imbalance_ratio(self.imbalance_ratio)
        dataset.PROFILES.get(self.profile)
        SUBSETS.get(self.subset)
        if not 0 <= self.rotate <= 180:
            raise ValueError(
                f"`rotate` must be in [0, 180] degrees, but is {self.rotate:g}."
            )

    @property
    def augmentation(self) -> Augmentation:
        """What is done to images in training."""
        return Augmentation(padding=4, flip=True, rotation=self.rotate)

    def load(
        self, *, root: Path | None = None, seed: int = 0
    ) -> dataset.LongTailedData:
        """Return the data, after a download if it is missing.

        Args:
            root: The folder that holds the archive's folder; None takes the
                environment variable ``TAILSHIFT_DATA``.
            seed: Not used: the images kept are the same for every run.
        """
        folder = cifar_files.find_folder(self.layout, root)
        images, labels = cifar_files.read_split(
            folder, self.layout.train_files, self.layout
        )
        kept = self._kept(images, labels, folder)
        augmentation = self.augmentation
        train = MemorySplit(images[kept], labels[kept], MEAN, STD, augmentation)
        test = cifar_files.read_split(folder, self.layout.test_files, self.layout)
        return dataset.LongTailedData(
            name=self.name,
            train=train,
            val=None,
            test=MemorySplit(*test, MEAN, STD, augmentation),
            class_names=cifar_files.read_names(folder, self.layout),
            fingerprint=train.fingerprint(),
        )

    def known_shape(self) -> dataset.DataShape:
        """Return the counts that the profile gives."""
        num_classes = self.layout.num_classes
        largest = NUM_TRAIN // num_classes
        counts = dataset.profile_counts(
            self.profile, largest, self.imbalance_ratio, num_classes
        )
        return dataset.DataShape(counts, image_size=32)

    def _kept(self, images: Tensor, labels: Tensor, folder: Path) -> NDArray[np.int64]:
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
        return SUBSETS.get(self.subset)(images.numpy(), y, counts, self.subset_seed)


@dataset.DATASETS.register("cifar100_lt")
@dataclass(frozen=True)
class CIFAR100LT(CIFARLT):
    """CIFAR-100-LT: 500 down to 500 / imbalance_ratio images per class, 100 classes."""

    sentence: ClassVar[str] = (
        "32×32 colour photographs, CIFAR-100 thinned to a long tail; 100 classes."
    )
    layout: ClassVar[cifar_files.Layout] = cifar_files.CIFAR100


@dataset.DATASETS.register("cifar10_lt")
@dataclass(frozen=True)
class CIFAR10LT(CIFARLT):
    """CIFAR-10-LT: 5000 down to 5000 / imbalance_ratio images per class, 10 classes."""

    sentence: ClassVar[str] = (
        "32×32 colour photographs, CIFAR-10 thinned to a long tail; 10 classes."
    )
    layout: ClassVar[cifar_files.Layout] = cifar_files.CIFAR10


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
