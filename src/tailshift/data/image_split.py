"""Splits of image files, and the data sets made of them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from tailshift.data.batches import BatchPlan, Loader
from tailshift.data.dataset import LongTailedData, Split
from tailshift.data.image_loader import REMEDY, FileLoader
from tailshift.data.images import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    EncodedImages,
    Preparation,
    Views,
)
from tailshift.data.memory import Normalisation


@dataclass(frozen=True, eq=False)
class FileSplit(Split):
    """Encoded images of any sizes, and their labels."""

    images: EncodedImages
    """The files, or rows of a table, that they are read from."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    preparation: Preparation = field(default_factory=Preparation)
    """Crops, and augments in training."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    """Per channel, of pixels in [0, 1]."""

    std: tuple[float, ...] = IMAGENET_STD
    """Per channel, of pixels in [0, 1]."""

    skip_broken: bool = False
    """Whether loaders skip images that cannot be read."""

    views: Views = "one"
    """How the images are seen in evaluation."""

    def __post_init__(self) -> None:
        self._check_labels(len(self.images))

    @property
    def in_channels(self) -> int:
        """Three: all images are loaded in colour."""
        return 3

    @property
    def image_size(self) -> int:
        """Height of the loaded images, which are square."""
        return self.preparation.image_size

    def missing(self) -> list[int]:
        """Return the positions of the images that are not there."""
        return np.flatnonzero(self.images.num_bytes < 0).tolist()

    def subset(self, rows: Tensor) -> "FileSplit":
        """Return the split of some rows: their indices, or a mask, shape (N,)."""
        ids = torch.arange(len(self))[rows]
        return replace(
            self, images=self.images.subset(ids.numpy()), labels=self.labels[ids]
        )

    def seen_in(self, views: Views) -> "FileSplit":
        """Return the split whose images are seen so in evaluation."""
        return replace(self, views=views)

    def keys(self) -> tuple[str, ...]:
        """Return each image's path, or split and row of its table."""
        return self.images.keys

    def fingerprint(self) -> str:
        """Return 16 hex digits of all images' paths, labels and lengths, sorted."""
        facts = zip(
            self.images.keys,
            self.labels.tolist(),
            self.images.num_bytes.tolist(),
            strict=True,
        )
        lines = sorted(f"{key}\0{label}\0{size}\n" for key, label, size in facts)
        return hashlib.sha256(
            "".join(lines).encode(errors="surrogateescape")
        ).hexdigest()[:16]

    def _loader(
        self, plan: BatchPlan, *, training: bool, num_workers: int | None
    ) -> Loader:
        return FileLoader(
            self.images,
            plan,
            preparation=self.preparation,
            normalise=Normalisation(self.mean, self.std),
            training=training,
            skip_broken=self.skip_broken,
            views=self.views,
            num_workers=num_workers,
        )


def file_data(
    name: str, splits: Mapping[str, FileSplit], class_names: tuple[str, ...]
) -> LongTailedData:
    """Return the data of `splits` ``train``, ``test`` and, if there is one, ``val``.

    Every file must exist, before hours are spent, unless broken images are skipped;
    no image may be in two splits.
    """
    for split_name, split in splits.items():
        _check_present(split_name, split)
    for first, second in combinations(splits, 2):
        _check_disjoint(first, splits[first], second, splits[second])
    train = splits["train"]
    return LongTailedData(
        name=name,
        train=train,
        val=splits.get("val"),
        test=splits["test"],
        class_names=class_names,
        fingerprint=train.fingerprint(),
    )


def _check_present(name: str, split: FileSplit) -> None:
    missing = [] if split.skip_broken else split.missing()
    if missing:
        raise FileNotFoundError(
            f"`{split.images.name(missing[0])}` is missing, one of {len(missing)} "
            f"missing of the {len(split)} images of {name}. {REMEDY}"
        )


def _check_disjoint(
    first: str, split: FileSplit, second: str, other: FileSplit
) -> None:
    shared = set(split.keys()) & set(other.keys())
    if shared:
        raise ValueError(
            f"an image must be in one split only, but {min(shared)} is in {first} and "
            f"in {second} ({len(shared)} such)."
        )
