"""What a data set is: its splits, its long-tailed profile, the class that loads it."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

import torch
from torch import Tensor

from tailshift.data.batches import BatchPlan, Loader
from tailshift.data.images import Preparation, Views
from tailshift.data.samplers import SAMPLERS, Sampler
from tailshift.priors import check_imbalance_ratio, long_tailed_counts
from tailshift.registry import Registry

VARIABLE = "TAILSHIFT_DATA"


def data_root(root: Path | None) -> Path:
    """Return `root`, or the folder that ``TAILSHIFT_DATA`` names if it is None."""
    if root is not None:
        return root
    if not os.environ.get(VARIABLE):
        raise ValueError(
            "`root` must name the folder of the data, but is None and the environment "
            f"variable {VARIABLE} is not set. Set it, or pass --data-root DIR."
        )
    return Path(os.environ[VARIABLE])


class Split(ABC):
    """Base of the splits: in memory (`MemorySplit`) or in files (`FileSplit`)."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    mean: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    std: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def in_channels(self) -> int:
        """Channels of an image: 3 for colour, 1 for grey."""

    @property
    @abstractmethod
    def image_size(self) -> int:
        """Height of the loaded images, which are square."""

    @abstractmethod
    def subset(self, rows: Tensor) -> "Split":
        """Return the split of some rows: their indices, or a mask, shape (N,)."""

    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """Return what tells each image apart from the others, wherever it lies."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return 16 hex digits that tell which images these are, in whatever order."""

    def loader(
        self,
        *,
        batch_size: int,
        training: bool,
        seed: int = 0,
        sampler: str | Sampler = "instance",
        num_epochs: int = 1,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int | None = None,
    ) -> Loader:
        """Return a loader: shuffled and augmented for training, else in order.

        Args:
            batch_size: Size of the global batch, over all ranks.
            training: Whether images are augmented and drawn by the sampler; otherwise
                the loader goes through the split once, in its order, as it is.
            seed: The run's seed, for order and augmentation.
            sampler: A name of :data:`~tailshift.data.samplers.SAMPLERS`, or one.
            num_epochs: Epochs of the whole training, for ``progressive``.
            drop_last: Whether to drop the last batch if it is partial.
            rank: This process, 0..world_size − 1.
            world_size: Number of processes.
            num_workers: Processes that decode images, if they are read from files;
                0 does it in this one, None takes the cores there are.
        """
        chosen = SAMPLERS.get(sampler) if isinstance(sampler, str) else sampler
        plan = BatchPlan(
            self.labels,
            batch_size=batch_size,
            sampler=chosen if training else None,
            seed=seed,
            num_epochs=num_epochs,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        return self._loader(plan, training=training, num_workers=num_workers)

    def seen_in(self, views: Views) -> "Split":
        """Return the split whose images are seen so in evaluation.

        Args:
            views: ``"one"``, or several of each image.
        """
        if views != "one":
            raise ValueError(
                f"`eval.views` must be 'one' for a {type(self).__name__}, but is "
                f"{views!r}."
            )
        return self

    def _check_labels(self, num_images: int) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (num_images,):
            raise ValueError(
                f"`labels` must be int64 of shape ({num_images},), one for each image, "
                f"but is {self.labels.dtype} of shape {tuple(self.labels.shape)}."
            )

    @abstractmethod
    def _loader(
        self, plan: BatchPlan, *, training: bool, num_workers: int | None
    ) -> Loader:
        """Return the loader of a plan."""


Profile: TypeAlias = Literal["exponential", "step"]

PROFILES: Registry[Callable[[int, float, int], Tensor]] = Registry("profile")


@PROFILES.register("step")
def step_counts(max_count: int, imbalance_ratio: float, num_classes: int) -> Tensor:
    """Return the largest count for the first half of the classes, the smallest after.

    With an odd number of classes the larger half is the rare one.

    Args:
        max_count: Images of a frequent class.
        imbalance_ratio: Largest / smallest count, >= 1.
        num_classes: C.

    Returns:
        Counts, int64, shape (C,).

    Example:
        >>> step_counts(500, 100, 5)
        tensor([500, 500,   5,   5,   5])
    """
    check_imbalance_ratio(imbalance_ratio)
    counts = torch.full((num_classes,), int(max_count / imbalance_ratio + 1e-9))
    counts[: num_classes // 2] = max_count
    return counts


def profile_counts(
    profile: str, max_count: int, imbalance_ratio: float, num_classes: int
) -> Tensor:
    """Return the counts of a profile by name, int64, shape (C,), each at least 1.

    Example:
        >>> profile_counts("exponential", 500, 100, 5)
        tensor([500, 158,  50,  15,   5])
    """
    counts = PROFILES.get(profile)(max_count, imbalance_ratio, num_classes)
    if counts.min() < 1:
        raise ValueError(
            f"`imbalance_ratio` must be <= {max_count} (the images of the largest "
            f"class), but is {imbalance_ratio:g}: class {int(counts.argmin())} would "
            "have no image."
        )
    return counts


PROFILES.register("exponential")(long_tailed_counts)


@dataclass(frozen=True, eq=False)
class LongTailedData:
    """A long-tailed training split with the splits it is judged on."""

    name: str
    """The data set's registered name."""

    train: Split
    """Long-tailed: its class counts define the source prior."""

    val: Split | None
    """Drawn from the source distribution; None if the benchmark has none."""

    test: Split
    """Balanced in the benchmarks; drawn from the source distribution if it was held
    out."""

    class_names: tuple[str, ...]
    """One for each class, by class index."""

    fingerprint: str
    """Which training images these are: the training split's fingerprint."""

    full_counts: Tensor | None = None
    """Training images of each class before some were held out, if some were."""

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
    def group_counts(self) -> Tensor:
        """The counts that make a class one of many, medium or few images, (C,)."""
        return self.class_counts if self.full_counts is None else self.full_counts

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

    def normalised(
        self, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> "LongTailedData":
        """Return the data whose pixels are normalised by other statistics.

        Args:
            mean: Per channel, of pixels in [0, 1].
            std: Per channel, of pixels in [0, 1].
        """
        splits: dict[str, Any] = {
            name: replace(split, mean=mean, std=std)
            for name in ("train", "val", "test")
            if (split := getattr(self, name)) is not None
        }
        return replace(self, **splits)


@dataclass(frozen=True, eq=False)
class DataShape:
    """Class counts and image size of a training split."""

    class_counts: Tensor
    """Training images of each class, int64, shape (C,)."""
    image_size: int
    """Height and width."""
    in_channels: int = 3

    @property
    def num_samples(self) -> int:
        """Training images."""
        return int(self.class_counts.sum())

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_counts)

    @property
    def imbalance_ratio(self) -> float:
        """Largest / smallest count."""
        return float(self.class_counts.max() / self.class_counts.min())


@dataclass(frozen=True)
class Dataset(ABC):
    """Base of the registered data sets; a subclass's fields are its settings."""

    sentence: ClassVar[str]
    """What the data set is, for lists; by default the docstring's first line."""

    @property
    def name(self) -> str:
        """The registered name."""
        return DATASETS.name_of(type(self))

    @property
    def option(self) -> str:
        """What `tailshift train` needs besides a recipe to find the data."""
        return "--data-root DIR"

    @abstractmethod
    def load(self, *, root: Path | None, seed: int) -> LongTailedData:
        """Return the data.

        Args:
            root: The folder that holds the data, for sets that are read from disk.
            seed: The run's seed, for sets whose split is drawn for each run.
        """

    def preparation(self, image_size: int) -> Preparation:
        """Return how image files become what a model of these data takes.

        Args:
            image_size: Height and width of the images that it was trained on.
        """
        return Preparation(image_size, fit="crop")

    def known_shape(self) -> DataShape | None:
        """Return the shape of the training split if it is known before it is read.

        Example:
            >>> from tailshift.data import CIFAR100LT
            >>> shape = CIFAR100LT(imbalance_ratio=100).known_shape()
            >>> shape.num_samples, shape.num_classes, shape.imbalance_ratio
            (10847, 100, 100.0)
        """
        return None

    def without_stops(self) -> Self:
        """Return the data set that skips missing images, if it has the choice.

        It is for looking for faults: all of them are counted, not the first alone.
        """
        return self


DATASETS: Registry[type[Dataset]] = Registry("data set", Dataset)


def _check_labels(split: str, labels: Tensor, num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"`{split}.labels` must be in 0..{num_classes - 1} ({num_classes} class "
            f"names), but run from {low} to {high}."
        )
