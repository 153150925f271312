"""The features of all images, in chunks, resumable, on several processes."""

import dataclasses
import signal
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Any

import torch

from tailshift.config import ModelConfig
from tailshift.cores import reusing_memory
from tailshift.data import LongTailedData, Split
from tailshift.data.batches import BatchPlan
from tailshift.data.feature_files import (
    map_split,
    split_path,
)
from tailshift.data.image_loader import BrokenImageWarning, default_num_workers
from tailshift.files import atomic_write
from tailshift.models import Backbone
from tailshift.training.extraction_network import check_finite, embed, folded
from tailshift.training.progress import RELAY_SECONDS
from tailshift.workers import end_with_parent, running

BATCH = 64
"""Images that go through the network at a time."""


MARKED = 16
"""Batches between two notes of how far a process is."""


Told = Callable[[int], None]
"""Told of images that are done."""


@dataclasses.dataclass(frozen=True, eq=False)
class BankPlan:
    """What a bank is to hold."""

    folder: Path
    data: LongTailedData
    model: ModelConfig
    views: int = 1
    """Views of each training image; the first is unaltered."""

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that have samples."""
        data = self.data
        named = {"train": data.train, "val": data.val, "test": data.test}
        return {name: split for name, split in named.items() if split}

    def num_views(self, name: str) -> int:
        """Return how many views a split has."""
        return self.views if name == "train" else 1

    def mark(self, name: str, view: int, rank: int, jobs: int) -> Path:
        """Return the file that says how many batches a process has done."""
        return self.folder / f"progress-{name}-{view}-{rank}-of-{jobs}"

    @property
    def num_images(self) -> int:
        """Images that go through the network, all views counted."""
        return sum(len(s) * self.num_views(name) for name, s in self.splits.items())


def num_done(plan: BankPlan, jobs: int) -> int:
    """Return how many images went through the network before, about."""
    done = 0
    for name, split in plan.splits.items():
        for view in range(plan.num_views(name)):
            marks = [plan.mark(name, view, rank, jobs) for rank in range(jobs)]
            batches = sum(_noted(mark)[0] for mark in marks)
            done += min(batches * BATCH, len(split))
    return done


def work(rank: int, jobs: int, plan: BankPlan, backbone: Backbone, track: Told) -> None:
    """Compute one process's share of all features.

    Args:
        rank: This process, 0..jobs − 1.
        jobs: Number of processes.
        plan: What the bank is to hold.
        backbone: The network.
        track: Told of images that are done.
    """
    num_cores = max(1, default_num_workers(jobs))
    if jobs > 1:
        torch.set_num_threads(num_cores)
    network = folded(backbone, plan.data.image_size).to(
        memory_format=torch.channels_last
    )
    for name, split in plan.splits.items():
        shape = (plan.num_views(name), len(split), backbone.feature_dim)
        arrays = map_split(split_path(plan.folder, name), shape, mode="r+")
        for view in range(plan.num_views(name)):
            mark = plan.mark(name, view, rank, jobs)
            loader = split.loader(
                batch_size=BATCH * jobs,
                training=view > 0,
                rank=rank,
                world_size=jobs,
                num_workers=num_cores,
            )
            done, total = _checked(mark, arrays, view, loader.plan)
            with closing(loader), reusing_memory():
                for batch in loader.epoch(view, done):
                    ids = batch.sample_ids.numpy()
                    if len(ids):
                        given = embed(network, batch.images)
                        check_finite(given, ids, name)
                        arrays["features"][view, ids] = given
                        arrays["labels"][ids] = batch.labels
                        total = _add_rows(total, arrays, view, ids)
                    done += 1
                    if done % MARKED == 0 or done == len(loader):
                        _note(mark, done, total, arrays)
                    track(len(ids))


def work_together(jobs: int, plan: BankPlan, backbone: Backbone, track: Told) -> None:
    """Compute all features in several processes, whose faults are raised here."""
    context = get_context("spawn")  # a fork would inherit PyTorch's threads
    counts, answers = context.Array("q", jobs), context.SimpleQueue()
    workers = [
        context.Process(
            target=_worker, args=(rank, jobs, plan, backbone, counts, answers)
        )
        for rank in range(jobs)
    ]
    with running(workers):
        known, is_busy = 0, True
        while is_busy:
            time.sleep(RELAY_SECONDS)
            is_failed = any(worker.exitcode for worker in workers)
            is_busy = not is_failed and any(worker.is_alive() for worker in workers)
            known, before = sum(counts[:]), known
            track(known - before)
            _heed(answers)
        if any(worker.exitcode for worker in workers):
            raise ChildProcessError(
                f"a process that made features for {plan.folder} has ended early. The "
                "same command continues where it stands, with --jobs 1 in less memory."
            )


def _heed(answers: Any) -> None:
    """Raise, or warn of, what processes have sent."""
    while not answers.empty():
        answer = answers.get()
        if isinstance(answer, Warning):
            warnings.warn(answer, stacklevel=3)
        else:
            raise answer


def _worker(
    rank: int, jobs: int, plan: BankPlan, backbone: Backbone, counts: Any, answers: Any
) -> None:
    """Do a share of the work in a process of its own, and tell of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    set_start_method(None, force=True)  # or those that decode import PyTorch anew
    end_with_parent()  # a killed parent may be started again, and write too

    def count(images: int) -> None:
        counts[rank] += images

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", BrokenImageWarning)
        try:
            work(rank, jobs, plan, backbone, count)
        except (ValueError, OSError, FloatingPointError) as error:
            answers.put(error)
    for warning in told:
        if isinstance(warning.message, BrokenImageWarning):
            answers.put(warning.message)


def _note(mark: Path, done: int, total: int, arrays: dict[str, Any]) -> None:
    """Write how many batches are done, and their checksum, once they are on disk."""
    for array in arrays.values():
        array.flush()
    with atomic_write(mark) as temporary:
        temporary.write_text(f"{done} {total:08x}")


def _noted(mark: Path) -> tuple[int, int]:
    """Return what was noted; nothing, if no note is there or it is damaged."""
    try:
        done, total = mark.read_text(encoding="ascii").split()
        return int(done), int(total, 16)
    except (FileNotFoundError, ValueError):
        return 0, 0


def _checked(
    mark: Path, arrays: dict[str, Any], view: int, plan: BatchPlan
) -> tuple[int, int]:
    """Return the batches done and their checksum; none, if what is there differs."""
    done, noted = _noted(mark)
    total = 0
    for request in plan.epoch(view)[:done]:
        ids = request.sample_ids
        total = _add_rows(total, arrays, view, ids[arrays["labels"][ids] >= 0])
    return (done, total) if total == noted and 0 <= done <= len(plan) else (0, 0)


def _add_rows(total: int, arrays: dict[str, Any], view: int, ids: Any) -> int:
    """Return a checksum that goes on with some samples' features and labels."""
    for rows in (arrays["features"][view, ids], arrays["labels"][ids]):
        total = zlib.crc32(rows.tobytes(), total)
    return total
