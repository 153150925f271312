"""Batches of image files, decoded in worker processes."""

import math
import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tailshift.cores import num_cores
from tailshift.data.batches import Batch, BatchPlan, Loader, Request
from tailshift.data.images import (
    BrokenImageError,
    EncodedImages,
    Preparation,
    Views,
    load_image,
)
from tailshift.data.memory import Normalisation
from tailshift.data.randomness import Stream, hashed_integers
from tailshift.data.strong_augmentation import Cutout, default_generator_restored
from tailshift.workers import (
    STOP_SIGNALS,
    block_signals,
    hold_signals,
    leave_signals_to_parent,
    stop_data_loader,
)

MOST_WORKERS = 8
REMEDY = "Fetch it again, or skip such images with data.skip_broken=true."


class BrokenImageWarning(UserWarning):
    """Images were skipped because they cannot be read."""


class _Loaded(NamedTuple):
    """A batch as a worker returns it."""

    images: Tensor
    sample_ids: NDArray[np.int64]
    broken: dict[int, str]


class FileLoader(Loader):
    """Yield the batches of a plan from encoded images, one epoch at a time.

    Each image's transform draws from a generator seeded by a hash of (seed, epoch,
    sample, occurrence), so batches are the same for any number of workers or ranks,
    and from any batch on; no other generator is touched.

    Workers live on between epochs, until the loader is closed (`contextlib.closing`).

    An image that cannot be read stops the epoch with its name or, with `skip_broken`,
    is skipped: its batch is that much smaller. A warning at the epoch's end says how
    many were, and `broken` keeps why.

    Args:
        images: The encoded images.
        plan: Which samples each batch has.
        preparation: Gives the transform of each decoded image.
        normalise: Applied after it.
        training: Whether to augment.
        skip_broken: Whether to skip images that cannot be read.
        views: How images are seen without training.
        num_workers: Processes beside this one; 0 reads in this one, None takes one for
            each core this rank has, at most 8.
    """

    def __init__(
        self,
        images: EncodedImages,
        plan: BatchPlan,
        *,
        preparation: Preparation,
        normalise: Normalisation,
        training: bool,
        skip_broken: bool = False,
        views: Views = "one",
        num_workers: int | None = None,
    ) -> None:
        if num_workers is None:
            num_workers = default_num_workers(plan.world_size)
        if num_workers < 0:
            raise ValueError(f"`num_workers` must be >= 0, but is {num_workers}.")
        super().__init__(plan, skip_broken=skip_broken)
        self.images = images
        self._num_workers = num_workers
        self._may_be_empty = plan.world_size > 1 or not training
        self._reader = _Reader(
            images, preparation, normalise, plan.seed if training else None, views
        )
        self._requests: list[Request] = []
        self._workers: DataLoader[_Loaded] | None = None
        self._epochs_begun = 0

    def _serve(self, requests: list[Request]) -> Iterator[Batch]:
        self._epochs_begun += 1
        this, known = self._epochs_begun, len(self.broken)
        batches = self._start(requests)
        for request in requests:
            loaded = next(batches)
            fault = self._fault(loaded, request)
            if fault:
                self.close()  # the workers end before anybody sees the error
                raise ValueError(fault)
            ids = torch.from_numpy(loaded.sample_ids)
            yield Batch(loaded.images, self.plan.labels[ids], ids)
            if this != self._epochs_begun:
                raise RuntimeError("a loader yields one epoch at a time.")
        if len(self.broken) > known:
            self._warn()

    def close(self) -> None:
        """End the workers: they are told to stop, and ended if they do not."""
        workers, self._workers = self._workers, None
        iterator: Any = getattr(workers, "_iterator", None)  # of persistent workers
        if iterator is not None:
            stop_data_loader(iterator)

    def _start(self, requests: list[Request]) -> Iterator[_Loaded]:
        """Return what the workers, which live on between epochs, load of these."""
        self._requests[:] = requests
        if self._workers is None:
            self._workers = DataLoader(
                self._reader,
                batch_size=None,  # the reader makes whole batches
                sampler=self._requests,
                num_workers=self._num_workers,
                collate_fn=_unchanged,
                worker_init_fn=leave_signals_to_parent,
                persistent_workers=self._num_workers > 0,
                generator=torch.Generator(),  # else an epoch draws from the global one
            )
        # Blocked, so that workers begin so; held, since another thread may still get a
        # signal, whose handler would leave a half-made iterator to the collector.
        with hold_signals(), block_signals(*STOP_SIGNALS):
            return iter(self._workers)

    def _fault(self, loaded: _Loaded, request: Request) -> str:
        """Keep why images are broken; return a sentence if they may not be skipped."""
        for i, reason in loaded.broken.items():
            self.broken.setdefault(i, f"`{self.images.name(i)}` {reason}")
        if not loaded.broken:
            return ""
        first = self.broken[next(iter(loaded.broken))]
        if not self.skip_broken:
            return f"{first}. {REMEDY}"
        is_empty = len(loaded.broken) == len(request.sample_ids)
        if is_empty and not self._may_be_empty:
            return (
                "a batch must have an image that can be read, but none of its "
                f"{len(request.sample_ids)} can: {first}. Fetch them again, or use "
                "larger batches."
            )
        return ""

    def _warn(self) -> None:
        first = next(iter(self.broken.values()))
        warnings.warn(
            f"{len(self.broken)} of {len(self.images)} images were skipped because "
            f"they cannot be read, the first: {first}.",
            BrokenImageWarning,
            stacklevel=3,
        )


class _Reader(Dataset[_Loaded]):
    """Reads the images of a request; runs in a worker."""

    def __init__(
        self,
        images: EncodedImages,
        preparation: Preparation,
        normalise: Normalisation,
        seed: int | None,
        views: Views,
    ) -> None:
        self._images = images
        of_one = (3, preparation.image_size, preparation.image_size)
        is_five = seed is None and views == "five_crop"
        self._size = (5, *of_one) if is_five else of_one
        self._normalise = normalise
        self._seed = seed
        self._cutout = Cutout(preparation.cutout)
        self._transform = (
            preparation.evaluation(views) if seed is None else preparation.training()
        )

    def __getitem__(self, request: Request) -> _Loaded:
        ids = request.sample_ids.tolist()
        kept, broken = list[int](), dict[int, str]()  # positions; reasons by sample
        batch = _empty(len(ids), *self._size)
        for row, (i, seed) in enumerate(zip(ids, self._seeds(request), strict=True)):
            try:
                batch[len(kept)] = self._normalise(self._load(i, seed))
                kept.append(row)
            except BrokenImageError as error:
                broken[i] = str(error)
        images, sample_ids = batch[: len(kept)], request.sample_ids[kept]
        if self._seed is not None:
            self._cutout(
                images,
                seed=self._seed,
                epoch=request.epoch,
                sample_ids=sample_ids,
                occurrences=request.occurrences[kept],
            )
        return _Loaded(images, sample_ids, broken)

    def _seeds(self, request: Request) -> list[int] | list[None]:
        if self._seed is None:
            return [None] * len(request.sample_ids)
        seeds: list[int] = hashed_integers(
            request.sample_ids,
            seed=self._seed,
            epoch=request.epoch,
            stream=Stream.TRANSFORM,
            occurrences=request.occurrences,
        ).tolist()
        return seeds

    def _load(self, i: int, seed: int | None) -> Tensor:
        image = load_image(self._images, i)
        if seed is None:
            return self._transform(image)
        with default_generator_restored() as generator:
            generator.manual_seed(seed)
            return self._transform(image)


def _empty(*shape: int) -> Tensor:
    """Return float32 of any values: in shared memory if a worker is to fill it.

    A tensor that is made elsewhere and shared then, empty or full, is copied.
    """
    if get_worker_info() is None or 0 in shape:
        return torch.empty(shape)
    num_bytes = math.prod(shape) * torch.float32.itemsize
    new_shared: Any = torch.UntypedStorage._new_shared  # as in default_collate
    return torch.empty(0).set_(new_shared(num_bytes)).view(shape)


def default_num_workers(world_size: int = 1) -> int:
    """Return one for each core that a rank has, at least 1 and at most 8."""
    sharing = world_size * int(os.environ.get(JOBS, 1))
    return min(max(num_cores() // sharing, 1), MOST_WORKERS)


JOBS = "TAILSHIFT_JOBS"
"""Environment variable with the number of runs that share the cores."""


def _unchanged(loaded: Any) -> Any:
    return loaded
