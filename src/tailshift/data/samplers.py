r"""Samplers: how often an epoch samples each class.

A sampler states a distribution over the classes; what it draws is then the same
construction for all. Of an epoch's N draws class c gets :math:`N p_c`, rounded up or
down so that the mean is exact, and goes through its images in an order of the epoch's
own, again from the start if it has too few. So the instance-balanced sampler draws
every image once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DistributedSampler

from tailshift.data.randomness import Stream, hashed_integers, hashed_uniforms
from tailshift.priors import VectorLike
from tailshift.registry import Registry

Counts: TypeAlias = NDArray[np.float64]
ClassWeights: TypeAlias = Callable[[Counts, float], Counts]
# (counts > 0, progress in [0, 1]) -> weights, not normalised


class Draws(NamedTuple):
    """The samples of an epoch, in order."""

    sample_ids: NDArray[np.int64]
    """Positions in the split, shape (N,)."""

    occurrences: NDArray[np.int64]
    """Numbers the draws of a sample in the epoch, from 0, shape (N,)."""


@dataclass(frozen=True)
class Sampler:
    """An entry of :data:`SAMPLERS`; the decorator of its function of class weights.

    Example:
        >>> sampler = SAMPLERS.get("square_root")
        >>> sampler.class_distribution([16, 4, 1])
        tensor([0.5714, 0.2857, 0.1429], dtype=torch.float64)
        >>> draws = SAMPLERS.get("class_balanced").draw([0, 0, 0, 1], seed=0, epoch=0)
        >>> draws.sample_ids, draws.occurrences
        (array([1, 2, 3, 3]), array([0, 0, 1, 0]))
    """

    class_weights: ClassWeights
    """The weight of each class that has images."""

    @property
    def sentence(self) -> str:
        """What it samples, for lists: the function's docstring."""
        return self.class_weights.__doc__ or ""

    def class_distribution(
        self, class_counts: VectorLike, *, progress: float = 1.0
    ) -> Tensor:
        """Return the prior of the sampled labels, float64, shape (C,).

        Args:
            class_counts: Training images of each class, shape (C,); a class without
                any is never sampled.
            progress: The share of the epochs that is done, in [0, 1]; the default is
                the end of training, which the last updates see.
        """
        counts = np.asarray(class_counts, dtype=np.float64)
        prior = np.zeros(len(counts))
        weights = self.class_weights(counts[counts > 0], progress)
        prior[counts > 0] = weights / weights.sum()
        return torch.from_numpy(prior)

    def draw(
        self,
        labels: VectorLike,
        *,
        seed: int,
        epoch: int,
        num_epochs: int = 1,
        num_draws: int | None = None,
    ) -> Draws:
        """Return the epoch's samples.

        Args:
            labels: Class indices, shape (N,).
            seed: The run's seed.
            epoch: The epoch, counted from 0.
            num_epochs: Epochs of the whole training.
            num_draws: Length of the epoch; by default as many as there are labels.
        """
        y = np.asarray(labels)
        total = len(y) if num_draws is None else num_draws
        _, c, n = np.unique(y, return_inverse=True, return_counts=True)
        weights = self.class_weights(n.astype(np.float64), min(epoch / num_epochs, 1))
        u = hashed_uniforms([0], seed=seed, epoch=epoch, stream=Stream.QUOTA)
        quotas = _rounded(weights, total, u.item())  # (C,) draws of each class
        hashes = hashed_integers(
            np.arange(len(y)), seed=seed, epoch=epoch, stream=Stream.CLASS_ORDER
        )
        by_class = np.lexsort((hashes, c))  # class by class, in the epoch's order
        c = np.repeat(np.arange(len(n)), quotas)  # (N,) the class of each draw
        # cumsum − itself is where a class begins, among the draws and in by_class. Its
        # k-th draw takes its image k modulo n, for the (k // n)-th time.
        k = np.arange(total) - (quotas.cumsum() - quotas)[c]
        ids, occurrences = by_class[(n.cumsum() - n)[c] + k % n[c]], k // n[c]
        order = np.argsort(
            hashed_integers(
                ids,
                seed=seed,
                epoch=epoch,
                stream=Stream.ORDER,
                occurrences=occurrences,
            )
        )
        return Draws(ids[order], occurrences[order])


def _rounded(weights: NDArray[np.float64], total: int, u: float) -> NDArray[np.int64]:
    """Share `total` out by weight in whole numbers, each exact in the mean over u.

    Systematic rounding: the shares stand end to end, and each gets the integers of
    the grid u + 0, u + 1, … that fall on it.
    """
    shares = total * weights.cumsum() / weights.sum() + u
    ends: NDArray[np.int64] = np.floor(shares).astype(np.int64)
    ends[-1] = total  # ⌊total + u⌋, but for rounding errors
    return np.diff(ends, prepend=0)


SAMPLERS: Registry[Sampler] = Registry("sampler", Sampler)


@SAMPLERS.register("instance")
@Sampler
def instance(counts: Counts, progress: float) -> Counts:
    """Every image once: classes as frequent as they are."""
    return counts


@SAMPLERS.register("class_balanced")
@Sampler
def class_balanced(counts: Counts, progress: float) -> Counts:
    """Every class equally often."""
    return np.ones_like(counts)


@SAMPLERS.register("square_root")
@Sampler
def square_root(counts: Counts, progress: float) -> Counts:
    """Classes by the square root of their count."""
    return np.sqrt(counts)


@SAMPLERS.register("progressive")
@Sampler
def progressive(counts: Counts, progress: float) -> Counts:
    """From instance-balanced at the start to class-balanced at the end, linearly."""
    n, t = counts, progress
    # [kang2020]: (1 − t/T) p_IB + (t/T) p_CB, both times the number of images
    weights: Counts = (1 - t) * n + t * n.sum() / len(n)
    return weights


@SAMPLERS.register("reverse")
@Sampler
def reverse(counts: Counts, progress: float) -> Counts:
    """Rare classes most: by n_max / n_c [zhou2020]."""
    weights: Counts = counts.max() / counts
    return weights


class ClassSampler(DistributedSampler[int]):
    """Any of :data:`SAMPLERS` for a ``torch.utils.data.DataLoader``.

    Processes that train together share the draws out: rank r takes every W-th from the
    r-th on, so that together they sample what one process would, to the count, and
    batches of size B/W join to its batches of size B. Call :meth:`set_epoch` before
    each epoch, as for its base; Lightning does, and leaves a sampler of this base as it
    is. Accelerate and ``transformers.Trainer`` deal batches out themselves: give
    ``rank=0, world_size=1`` there.

    Args:
        labels: Class index of each sample of the data set, shape (N,).
        sampler: Name of one of :data:`SAMPLERS`, or one of your own.
        seed: Seed of the draws, the same on all processes.
        num_epochs: Epochs of the whole training, for ``"progressive"``.
        num_draws: Samples of an epoch over all processes, a multiple of their number;
            by default N.
        rank: This process, 0..world_size − 1; by default the process group's answer
            when an epoch begins, or 0.
        world_size: Number of processes; by default as for ``rank``.

    Example:
        >>> labels = [0, 0, 0, 0, 0, 1]
        >>> sampler = ClassSampler(labels, "class_balanced")
        >>> [labels[i] for i in sampler]
        [1, 1, 0, 0, 0, 1]
        >>> halves = [ClassSampler(labels, rank=r, world_size=2) for r in (0, 1)]
        >>> [[labels[i] for i in half] for half in halves]
        [[1, 0, 0], [1, 0, 1]]
    """

    def __init__(
        self,
        labels: VectorLike,
        sampler: str | Sampler = "class_balanced",
        *,
        seed: int = 0,
        num_epochs: int = 1,
        num_draws: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.labels = np.asarray(labels)
        super().__init__(self.labels, num_replicas=1, rank=0, seed=seed)  # type: ignore[arg-type] # it asks for the length alone
        self.sampler = SAMPLERS.get(sampler) if isinstance(sampler, str) else sampler
        self.num_epochs = num_epochs
        self.num_draws = len(self.labels) if num_draws is None else num_draws
        if (rank is None) != (world_size is None):
            raise ValueError(
                "`rank` and `world_size` must be given together, but `rank` is "
                f"{rank} and `world_size` is {world_size}."
            )
        self._given = None if rank is None or world_size is None else (rank, world_size)

    def __iter__(self) -> Iterator[int]:
        """Yield positions in the data set: this process's share of the epoch."""
        rank, world_size = self._place()
        draws = self.sampler.draw(
            self.labels,
            seed=self.seed,
            epoch=self.epoch,
            num_epochs=self.num_epochs,
            num_draws=self.num_draws,
        )
        yield from draws.sample_ids[rank::world_size].tolist()

    def __len__(self) -> int:
        """Return how many samples this process has in an epoch."""
        return self.num_draws // self._place()[1]

    def _place(self) -> tuple[int, int]:
        """Return rank and number of processes, asked for late: groups form late."""
        rank, world_size = self._given or (0, 1)
        if self._given is None and dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
        if self.num_draws % world_size:
            fewer = self.num_draws - self.num_draws % world_size
            raise ValueError(
                f"`num_draws` must be a multiple of the {world_size} processes, so "
                f"that none waits for another, but is {self.num_draws}. Give "
                f"num_draws={fewer} or {fewer + world_size}."
            )
        return rank, world_size
