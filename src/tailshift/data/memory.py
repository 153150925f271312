"""A split held in memory, and its loader: vectorised, resumable, no workers."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.augmentation import Augmentation
from tailshift.data.batches import Batch, BatchPlan, Loader, Request
from tailshift.data.normalisation import Normalisation
from tailshift.data.split import Split


@dataclass(frozen=True, eq=False)
class MemorySplit(Split):
    """Images and labels of one split, all of one size.

    Example:
        >>> images = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
        >>> split = MemorySplit(images, torch.arange(5), mean=(0.5,), std=(0.5,))
        >>> loader = split.loader(batch_size=2, training=False)
        >>> [batch.labels.tolist() for batch in loader.epoch(0)]
        [[0, 1], [2, 3], [4]]
    """

    images: Tensor
    """uint8, shape (N, channels, H, W)."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    mean: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    std: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    """Applied in training."""

    def __post_init__(self) -> None:
        images = self.images
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(
                "`images` must be uint8 of shape (N, channels, H, W), but is "
                f"{images.dtype} of shape {tuple(images.shape)}."
            )
        self._check_labels(len(images))
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.in_channels:
                raise ValueError(
                    f"`{name}` has {len(values)} entries but the images have "
                    f"{self.in_channels} channels."
                )

    @property
    def in_channels(self) -> int:
        """Channels of an image: 3 for colour, 1 for grey."""
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        """Height of the images, which are square."""
        return self.images.shape[2]

    def subset(self, rows: Tensor) -> "MemorySplit":
        """Return the split of some rows: their indices, or a mask, shape (N,)."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def keys(self) -> tuple[str, ...]:
        """Return the SHA-256 of each image's pixels, in hex digits."""
        return tuple(digest.hex() for digest in image_hashes(self.images.numpy()))

    def fingerprint(self) -> str:
        """Return 16 hex digits that tell which images these are, in whatever order.

        Example:
            >>> images = torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2)
            >>> split = MemorySplit(images, torch.tensor([0, 1]), (0.5,), (0.5,))
            >>> split.fingerprint() == split.subset(torch.tensor([1, 0])).fingerprint()
            True
        """
        hashes = sorted(image_hashes(self.images.numpy()))
        return hashlib.sha256(b"".join(hashes)).hexdigest()[:16]

    def _loader(
        self, plan: BatchPlan, *, training: bool, num_workers: int | None
    ) -> Loader:
        return MemoryLoader(self, plan, training=training)


def image_hashes(images: NDArray[np.uint8], *, salt: bytes = b"") -> list[bytes]:
    """Return the SHA-256 of each image's pixels followed by `salt`."""
    rows = np.ascontiguousarray(images).reshape(len(images), -1)
    return [hashlib.sha256(row.tobytes() + salt).digest() for row in rows]


class MemoryLoader(Loader):
    """Serve the batches of a plan from a split in memory.

    Args:
        split: Images and labels.
        plan: Which samples each batch has.
        training: Whether to augment them.
    """

    def __init__(self, split: MemorySplit, plan: BatchPlan, *, training: bool) -> None:
        super().__init__(plan)
        self.split = split
        self.augmentation = split.augmentation if training else None
        self._normalise = Normalisation(split.mean, split.std)

    def _serve(self, requests: list[Request]) -> Iterator[Batch]:
        return map(self._batch, requests)

    def _batch(self, request: Request) -> Batch:
        ids = torch.from_numpy(request.sample_ids)
        images = self.split.images.index_select(0, ids)  # faster than images[ids]
        if self.augmentation is not None:
            images = self.augmentation(
                images,
                seed=self.plan.seed,
                epoch=request.epoch,
                sample_ids=ids,
                occurrences=torch.from_numpy(request.occurrences),
            )
        return Batch(self._normalise(images), self.split.labels[ids], ids)
