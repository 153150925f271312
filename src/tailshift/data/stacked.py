"""Batches of several loaders, one under the other."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from tailshift.data.batches import Batch


class Batches(Protocol):
    """What training reads: the batches of an epoch, from any batch on."""

    def __len__(self) -> int:
        """Return the number of batches an epoch, equal on all ranks."""

    @property
    def num_broken(self) -> int | None:
        """Images that were left out so far; None where none ever is."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the epoch's batches, from `start_batch` on."""


class StackedLoader:
    """Gives, as one batch, a batch of each loader: equal parts, one after the other.

    Args:
        loaders: As long as each other.

    Example:
        >>> from tailshift.data import DigitsLT
        >>> split = DigitsLT().load(root=None, seed=0).train
        >>> loader = split.loader(batch_size=4, training=True)
        >>> batch = next(StackedLoader([loader, loader]).epoch(0))
        >>> len(batch.labels), torch.equal(*batch.labels.chunk(2))
        (8, True)
    """

    def __init__(self, loaders: Sequence[Batches]) -> None:
        self.loaders = list(loaders)

    @property
    def num_broken(self) -> int | None:
        """Images that were left out so far; None where none ever is."""
        return max((loader.num_broken for loader in self.loaders), key=lambda n: n or 0)

    def __len__(self) -> int:
        """Return the number of batches an epoch."""
        return len(self.loaders[0])

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the epoch's batches, from `start_batch` on."""
        epochs = (loader.epoch(epoch, start_batch) for loader in self.loaders)
        for batches in zip(*epochs, strict=True):
            size = min(len(batch.labels) for batch in batches)  # some left images out
            images, labels, sample_ids = (
                torch.cat([batch[part][:size] for batch in batches])
                for part in range(3)
            )
            yield Batch(images, labels, sample_ids, _all_labels(batches))


def _all_labels(batches: Sequence[Batch]) -> Tensor | None:
    parts = [batch.all_labels for batch in batches if batch.all_labels is not None]
    return torch.cat(parts) if len(parts) == len(batches) else None
