"""Which samples make up each batch of an epoch on each rank, and who yields them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.samplers import Draws, Sampler


class Batch(NamedTuple):
    """One step's samples on one rank."""

    images: Tensor
    """Normalised, float32, shape (B, channels, H, W)."""

    labels: Tensor
    """int64, shape (B,)."""

    sample_ids: Tensor
    """Positions in the split, int64, shape (B,)."""

    all_labels: Tensor | None = None
    """Labels of all ranks' samples, in the global batch's order; None on one rank
    alone, and if a rank may skip samples."""


class Request(NamedTuple):
    """The samples of one batch, to be loaded."""

    epoch: int
    sample_ids: NDArray[np.int64]
    occurrences: NDArray[np.int64]
    all_ids: NDArray[np.int64]
    """Samples of the global batch, this rank's among them."""


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The batches of every epoch, the same whatever the ranks and wherever it starts.

    Global batch b of an epoch is ``order[b·B:(b+1)·B]`` and a rank takes every
    ``world_size``-th sample of it, so the union over ranks is exactly the batch that
    one process would see. Without `drop_last` the last batch may be smaller, and empty
    on some ranks.

    Example:
        >>> import torch
        >>> plan = BatchPlan(torch.tensor([0, 1, 0, 1, 1]), batch_size=2, sampler=None)
        >>> [request.sample_ids.tolist() for request in plan.epoch(0)]
        [[0, 1], [2, 3], [4]]
    """

    labels: Tensor
    """Class indices of the split, int64, shape (N,)."""

    batch_size: int
    """B, of the global batch, over all ranks."""

    sampler: Sampler | None
    """Decides each epoch's samples and their order; None is the split's order."""

    seed: int = 0
    """The run's seed."""

    num_epochs: int = 1
    """Epochs of the whole training, for samplers that change on the way."""

    drop_last: bool = False
    """Whether to drop the last batch if it is partial."""

    rank: int = 0
    """This process, 0..world_size − 1."""

    world_size: int = 1
    """Number of processes."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"`batch_size` must be >= 1, but is {self.batch_size}.")
        if self.drop_last and self.batch_size > len(self.labels):
            raise ValueError(
                f"`batch_size` must be at most the number of samples "
                f"({len(self.labels)}) with `drop_last`, but is {self.batch_size}: no "
                "batch would be left."
            )
        if self.num_epochs < 1:
            raise ValueError(f"`num_epochs` must be >= 1, but is {self.num_epochs}.")
        if self.world_size < 1:
            raise ValueError(f"`world_size` must be >= 1, but is {self.world_size}.")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"`rank` must be in 0..{self.world_size - 1} (world_size "
                f"{self.world_size}), but is {self.rank}."
            )

    def __len__(self) -> int:
        """Return the number of batches per epoch, equal on all ranks."""
        full, rest = divmod(len(self.labels), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def epoch(self, epoch: int, start_batch: int = 0) -> list[Request]:
        """Return what this rank has to load in an epoch.

        Args:
            epoch: Which epoch, counted from 0.
            start_batch: Batches already done; ``len(self)`` of them leave none.
        """
        if not 0 <= start_batch <= len(self):
            raise ValueError(
                f"`start_batch` must be in 0..{len(self)} (batches per epoch), but is "
                f"{start_batch}."
            )
        draws = self._draws(epoch)
        return [self._request(draws, epoch, b) for b in range(start_batch, len(self))]

    def _draws(self, epoch: int) -> Draws:
        if self.sampler is None:
            ids = np.arange(len(self.labels))
            return Draws(ids, np.zeros_like(ids))
        return self.sampler.draw(
            self.labels, seed=self.seed, epoch=epoch, num_epochs=self.num_epochs
        )

    def _request(self, draws: Draws, epoch: int, b: int) -> Request:
        batch = slice(b * self.batch_size, (b + 1) * self.batch_size)
        ids, occurrences = (part[batch][self.rank :: self.world_size] for part in draws)
        return Request(epoch, ids, occurrences, draws.sample_ids[batch])


class Loader(ABC):
    """Base of the loaders: yields the batches of a plan, from any batch on.

    Args:
        plan: Which samples each batch has.
        skip_broken: Whether to skip images that cannot be read.
    """

    broken: dict[int, str]
    """Why a sample was skipped, by sample id; empty if all could be read."""

    def __init__(self, plan: BatchPlan, *, skip_broken: bool = False) -> None:
        self.plan = plan
        self.skip_broken = skip_broken
        self.broken = {}

    def __len__(self) -> int:
        """Return the number of batches per epoch, equal on all ranks."""
        return len(self.plan)

    @property
    def num_broken(self) -> int | None:
        """Images that this rank has skipped so far; None if it never skips any."""
        return len(self.broken) if self.skip_broken else None

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the epoch's batches, from `start_batch` on.

        Args:
            epoch: Which epoch; it decides order and augmentation.
            start_batch: Batches already done; ``len(self)`` of them leave none.
        """
        requests = self.plan.epoch(epoch, start_batch)
        batches = self._serve(requests)
        if self.plan.world_size == 1 or self.skip_broken:
            return batches
        return map(self._with_all_labels, batches, requests)

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what works beside this process; another epoch begins it anew."""

    def _with_all_labels(self, batch: Batch, request: Request) -> Batch:
        all_ids = torch.from_numpy(request.all_ids)
        return batch._replace(all_labels=self.plan.labels[all_ids])

    @abstractmethod
    def _serve(self, requests: list[Request]) -> Iterator[Batch]:
        """Yield the batch of each request."""


class Batches(Protocol):
    """What training reads: the batches of an epoch, from any batch on."""

    def __len__(self) -> int:
        """Return the number of batches per epoch, equal on all ranks."""

    @property
    def num_broken(self) -> int | None:
        """Images that were skipped so far; None if none ever are."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the epoch's batches, from `start_batch` on."""

    def close(self) -> None:
        """End what works beside this process."""


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
        """Images that were skipped so far; None if none ever are."""
        return max((loader.num_broken for loader in self.loaders), key=lambda n: n or 0)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.loaders[0])

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the epoch's batches, from `start_batch` on."""
        epochs = (loader.epoch(epoch, start_batch) for loader in self.loaders)
        for batches in zip(*epochs, strict=True):
            size = min(len(batch.labels) for batch in batches)  # some skipped images
            images, labels, sample_ids = (
                torch.cat([batch[part][:size] for batch in batches])
                for part in range(3)
            )
            yield Batch(images, labels, sample_ids, _all_labels(batches))

    def close(self) -> None:
        """Close all of the loaders."""
        for loader in self.loaders:
            loader.close()


def _all_labels(batches: Sequence[Batch]) -> Tensor | None:
    parts = [batch.all_labels for batch in batches if batch.all_labels is not None]
    return torch.cat(parts) if len(parts) == len(batches) else None
