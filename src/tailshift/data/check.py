"""Verify a copy of a data set before hours are spent on it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from tailshift.data.dataset import DATASETS, Dataset, LongTailedData, Split
from tailshift.data.image_loader import FileSplit, default_num_workers
from tailshift.data.images import BrokenImageError, load_image
from tailshift.data.own_forms import parse_data_option

SAMPLED = 500
MOST_NAMED = 10


@dataclass(frozen=True)
class DataCheck:
    """What was found."""

    summary: tuple[str, ...]
    """What the data is, a line each; empty where it could not be read."""

    faults: tuple[str, ...]
    """What is wrong with it, a sentence each."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def check_data(
    dataset: Dataset | str, root: Path | None = None, *, all_images: bool = False
) -> DataCheck:
    """Read lists, labels and counts, look for every file, and decode images.

    Args:
        dataset: A data set with its settings; or, without any, its name or
            ``folder:PATH`` and the like.
        root: The folder that holds the data.
        all_images: Whether to decode all images; otherwise 500 of each split.

    Example:
        >>> check_data("digits_lt").summary[:2]
        ('digits_lt: 10 classes', 'train: 276 images, 2 to 100 a class')
    """
    if isinstance(dataset, str):
        option = parse_data_option(dataset)
        dataset = DATASETS.get(option.pop("name"))(**option)
    try:
        data = dataset.without_stops().load(root=root, seed=0)
    except (ValueError, OSError, ImportError) as error:
        return DataCheck((), (str(error),))
    summary, faults = [f"{data.name}: {data.num_classes} classes"], list[str]()
    for name, split in _splits(data):
        summary.append(_describe(name, split, data.num_classes))
        if isinstance(split, FileSplit):
            summary[-1] += f", {_check_files(name, split, all_images, faults)} decoded"
    summary.append(f"fingerprint of the training split: {data.fingerprint}")
    return DataCheck(tuple(summary), tuple(faults))


def _splits(data: LongTailedData) -> Iterator[tuple[str, Split]]:
    for name in ("train", "val", "test"):
        split = getattr(data, name)
        if split is not None:
            yield name, split


def _describe(name: str, split: Split, num_classes: int) -> str:
    n = torch.bincount(split.labels, minlength=num_classes)
    return f"{name}: {len(split)} images, {n.min()} to {n.max()} a class"


def _check_files(
    name: str, split: FileSplit, all_images: bool, faults: list[str]
) -> int:
    """Add the faults of a split's files; return how many images were decoded."""
    missing = split.missing()
    if missing:
        faults.append(
            f"{len(missing)} of the {len(split)} images of {name} are missing, the "
            f"first: `{split.images.name(missing[0])}`."
        )
    there = np.setdiff1d(np.arange(len(split)), missing)
    if not all_images and len(there) > SAMPLED:
        there = there[np.linspace(0, len(there) - 1, SAMPLED).astype(int)]
    broken = list(_broken(name, split, there.tolist()))
    faults += broken[:MOST_NAMED]
    if len(broken) > MOST_NAMED:
        faults.append(f"… and {len(broken) - MOST_NAMED} more of {name}.")
    return len(there) - len(broken)


def _broken(name: str, split: FileSplit, rows: list[int]) -> Iterator[str]:
    def fault(row: int) -> str:
        try:
            load_image(split.images, row)
        except BrokenImageError as error:
            return f"`{split.images.name(row)}` {error}."
        return ""

    console = Console(stderr=True)
    with ThreadPoolExecutor(default_num_workers()) as pool:  # decoding frees the lock
        results = track(
            pool.map(fault, rows),
            f"decoding {name}",
            total=len(rows),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        yield from (sentence for sentence in results if sentence)
