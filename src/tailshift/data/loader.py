"""Batches from a split in memory: shuffled, augmented, normalised, resumable."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tailshift.data.augmentation import Augmentation
from tailshift.data.dataset import Split
from tailshift.data.randomness import sample_order


class Batch(NamedTuple):
    """One step's samples on one rank."""

    images: Tensor
    """Normalised, float32, shape (B, channels, H, W)."""

    labels: Tensor
    """int64, shape (B,)."""

    sample_ids: Tensor
    """Positions in the split, int64, shape (B,)."""


class MemoryLoader:
    """Serve a split's batches, the same whatever the ranks and wherever it starts.

    Global batch b of an epoch is ``order[b·B:(b+1)·B]`` and a rank takes every
    ``world_size``-th sample of it, so the union over ranks is exactly the batch that
    one process would see, image by image. Without `drop_last` the last batch may be
    smaller, and empty on some ranks.

    Args:
        split: Images and labels.
        batch_size: B, of the global batch, over all ranks.
        augmentation: Applied to each batch; None leaves images as they are.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        seed: The run's seed, for order and augmentation.
        shuffle: Whether each epoch has its own order; otherwise the split's order.
        drop_last: Whether to leave out the last batch where it is partial.
        rank: This process, 0..world_size − 1.
        world_size: Number of processes.

    Example:
        >>> images = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
        >>> split = Split(images, torch.arange(5))
        >>> loader = MemoryLoader(
        ...     split, batch_size=2, mean=[0.5], std=[0.5], shuffle=False
        ... )
        >>> [batch.labels.tolist() for batch in loader.epoch(0)]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        split: Split,
        *,
        batch_size: int,
        augmentation: Augmentation | None = None,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check_sizes(len(split), batch_size, drop_last, rank, world_size)
        self.split = split
        self.batch_size = batch_size
        self.augmentation = augmentation
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self._scale, self._shift = _scale_and_shift(mean, std, split.images.shape[1])

    def __len__(self) -> int:
        """Return the number of batches an epoch, equal on all ranks."""
        full, rest = divmod(len(self.split), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the epoch's batches, from `start_batch` on.

        Args:
            epoch: Which epoch; it decides order and augmentation.
            start_batch: Batches already done; ``len(self)`` of them leave none.
        """
        if not 0 <= start_batch <= len(self):
            raise ValueError(
                f"`start_batch` must be in 0..{len(self)} (batches an epoch), but is "
                f"{start_batch}."
            )
        order = self._order(epoch)
        return (self._batch(order, epoch, b) for b in range(start_batch, len(self)))

    def _order(self, epoch: int) -> Tensor:
        if self.shuffle:
            return sample_order(len(self.split), self.seed, epoch)
        return torch.arange(len(self.split))

    def _batch(self, order: Tensor, epoch: int, b: int) -> Batch:
        whole = order[b * self.batch_size : (b + 1) * self.batch_size]
        ids = whole[self.rank :: self.world_size]
        images = self.split.images.index_select(0, ids)  # faster than images[ids]
        if self.augmentation is not None:
            images = self.augmentation(
                images, seed=self.seed, epoch=epoch, sample_ids=ids
            )
        return Batch(self._normalise(images), self.split.labels[ids], ids)

    def _normalise(self, images: Tensor) -> Tensor:
        """Return (pixel/255 − mean)/std, as one scale and one shift a channel."""
        return images.to(torch.float32).mul_(self._scale).add_(self._shift)


def _scale_and_shift(
    mean: Sequence[float], std: Sequence[float], channels: int
) -> tuple[Tensor, Tensor]:
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise ValueError(
                f"`{name}` has {len(values)} entries but the images have {channels} "
                "channels."
            )
    if min(std) <= 0:
        raise ValueError(f"`std` must be > 0, but is {tuple(std)}.")
    m, s = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
    return (1 / (255 * s)).float(), (-m / s).float()  # (c, 1, 1)


def _check_sizes(
    num_samples: int, batch_size: int, drop_last: bool, rank: int, world_size: int
) -> None:
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be >= 1, but is {batch_size}.")
    if drop_last and batch_size > num_samples:
        raise ValueError(
            f"`batch_size` must be at most the number of samples ({num_samples}) with "
            f"`drop_last`, but is {batch_size}: no batch would be left."
        )
    if world_size < 1:
        raise ValueError(f"`world_size` must be >= 1, but is {world_size}.")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"`rank` must be in 0..{world_size - 1} (world_size {world_size}), but is "
            f"{rank}."
        )
