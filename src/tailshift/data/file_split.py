"""A split whose images are decoded when they are needed."""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from tailshift.data.batches import BatchPlan, Loader
from tailshift.data.decoding import EncodedImages
from tailshift.data.file_loader import FileLoader
from tailshift.data.normalisation import Normalisation
from tailshift.data.preparation import IMAGENET_MEAN, IMAGENET_STD, Preparation
from tailshift.data.split import Split


@dataclass(frozen=True, eq=False)
class FileSplit(Split):
    """Encoded images of any sizes, and their labels."""

    images: EncodedImages
    """Where they are."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    preparation: Preparation = field(default_factory=Preparation)
    """Crops, and augments in training."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    """Per channel, of pixels in [0, 1]."""

    std: tuple[float, ...] = IMAGENET_STD
    """Per channel, of pixels in [0, 1]."""

    skip_broken: bool = False
    """Whether loaders leave out what cannot be read."""

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
            num_workers=num_workers,
        )
