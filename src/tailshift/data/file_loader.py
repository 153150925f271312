"""Batches of images read from files: decoded and transformed in worker processes."""

import math
import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tailshift.data.batches import Batch, BatchPlan, Loader, Request
from tailshift.data.decoding import BrokenImageError, EncodedImages, load_image
from tailshift.data.normalisation import Normalisation
from tailshift.data.preparation import Preparation
from tailshift.data.randomness import Stream, hashed_integers

MOST_WORKERS = 8
MEND = "Fetch it again, or leave such images out with data.skip_broken=true."


class BrokenImageWarning(UserWarning):
    """Images were left out because they cannot be read."""


class _Loaded(NamedTuple):
    """A batch as a worker returns it."""

    images: Tensor
    sample_ids: NDArray[np.int64]
    broken: dict[int, str]


class FileLoader(Loader):
    """Serve the batches of a plan from encoded images, one epoch at a time.

    Each image's transform draws from a generator seeded by a hash of (seed, epoch,
    sample, occurrence), so batches are the same for any number of workers or ranks,
    and from any batch on; no other generator is touched.

    An image that cannot be read stops the epoch with its name or, with `skip_broken`,
    is left out: its batch is that much smaller. A warning at the epoch's end says how
    many were, and `broken` keeps why.

    Args:
        images: The encoded images.
        plan: Which samples each batch has.
        preparation: Gives the transform of each decoded image.
        normalise: Applied after it.
        training: Whether to augment.
        skip_broken: Whether to leave out what cannot be read.
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
            images, preparation, normalise, plan.seed if training else None
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
                self._workers = None
                del batches  # the workers end before anybody sees the error
                raise ValueError(fault)
            ids = torch.from_numpy(loaded.sample_ids)
            yield Batch(loaded.images, self.plan.labels[ids], ids)
            if this != self._epochs_begun:
                raise RuntimeError("a loader serves one epoch at a time.")
        if len(self.broken) > known:
            self._warn()

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
                worker_init_fn=_ignore_interrupts,
                persistent_workers=self._num_workers > 0,
                generator=torch.Generator(),  # else an epoch draws from the global one
            )
        return iter(self._workers)

    def _fault(self, loaded: _Loaded, request: Request) -> str:
        """Keep why images were left out; return what is wrong where they may not be."""
        for i, reason in loaded.broken.items():
            self.broken.setdefault(i, f"`{self.images.name(i)}` {reason}")
        if not loaded.broken:
            return ""
        first = self.broken[next(iter(loaded.broken))]
        if not self.skip_broken:
            return f"{first}. {MEND}"
        is_empty = len(loaded.broken) == len(request.sample_ids)
        if is_empty and not self._may_be_empty:
            return (
                "a batch must have an image that can be read, but none of its "
                f"{len(request.sample_ids)} can: {first}. Fetch them again, or take "
                "larger batches."
            )
        return ""

    def _warn(self) -> None:
        first = next(iter(self.broken.values()))
        warnings.warn(
            f"{len(self.broken)} of {len(self.images)} images were left out because "
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
    ) -> None:
        self._images = images
        self._size = (3, preparation.image_size, preparation.image_size)
        self._normalise = normalise
        self._seed = seed
        self._transform = (
            preparation.evaluation() if seed is None else preparation.training()
        )

    def __getitem__(self, request: Request) -> _Loaded:
        ids = request.sample_ids.tolist()
        kept, broken = list[int](), dict[int, str]()
        batch = _empty(len(ids), *self._size)
        for i, seed in zip(ids, self._seeds(request), strict=True):
            try:
                batch[len(kept)] = self._normalise(self._load(i, seed))
                kept.append(i)
            except BrokenImageError as error:
                broken[i] = str(error)
        return _Loaded(batch[: len(kept)], np.array(kept, np.int64), broken)

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
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(seed)
        try:
            return self._transform(image)
        finally:
            generator.set_state(state)


def _empty(*shape: int) -> Tensor:
    """Return float32 of any values: in shared memory, where a worker is to fill it.

    A tensor that is made elsewhere and shared then, empty or full, is copied.
    """
    if get_worker_info() is None or 0 in shape:
        return torch.empty(shape)
    num_bytes = math.prod(shape) * torch.float32.itemsize
    new_shared: Any = torch.UntypedStorage._new_shared  # as in default_collate
    return torch.empty(0).set_(new_shared(num_bytes)).view(shape)


def default_num_workers(world_size: int = 1) -> int:
    """Return one for each core that a rank has, at least 1 and at most 8."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # fewer, where a scheduler gave only some
        cores = len(os.sched_getaffinity(0))
    return min(max(cores // world_size, 1), MOST_WORKERS)


def _unchanged(loaded: Any) -> Any:
    return loaded


def _ignore_interrupts(worker: int) -> None:
    """Leave Ctrl-C and SIGTERM to the main process, which ends its step first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
