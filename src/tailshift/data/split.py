"""One split of a data set: its labels, and loaders of its images."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from tailshift.data.batches import BatchPlan, Loader
from tailshift.data.samplers import SAMPLERS, Sampler


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
            batch_size: Of the global batch, over all ranks.
            training: Whether images are augmented and drawn by the sampler; otherwise
                the loader goes through the split once, in its order, as it is.
            seed: The run's seed, for order and augmentation.
            sampler: A name of :data:`~tailshift.data.samplers.SAMPLERS`, or one.
            num_epochs: Epochs of the whole training, for ``progressive``.
            drop_last: Whether to leave out the last batch where it is partial.
            rank: This process, 0..world_size − 1.
            world_size: Number of processes.
            num_workers: Processes that decode images, where they are read from files;
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
