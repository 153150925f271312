"""Verify a copy of a data set before hours are spent on it."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track

from tailshift.data.dataset import DATASETS, Dataset, LongTailedData, Split
from tailshift.data.image_loader import default_num_workers
from tailshift.data.image_split import FileSplit
from tailshift.data.images import BrokenImageError, load_image, open_image, to_rgb
from tailshift.data.list_files import shown
from tailshift.data.own_forms import parse_data_option

SAMPLED = 500
MOST_NAMED = 10


FIRST = 5
"""Class names that are shown."""


class Look(NamedTuple):
    """What a file of an image holds."""

    size: tuple[int, int]
    """Width and height."""
    mode: str
    """Pillow's: ``"RGB"``, ``"L"``, ``"I;16"`` …"""


@dataclass(frozen=True)
class DataCheck:
    """What was found."""

    summary: tuple[str, ...]
    """What the data is, a line each; empty if it could not be read."""

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
        >>> print(check_data("digits_lt").summary[0])
        digits_lt: 10 classes (0, 1, 2, 3, 4, …)
    """
    if isinstance(dataset, str):
        option = parse_data_option(dataset)
        dataset = DATASETS.get(option.pop("name"))(**option)
    try:
        data = dataset.without_stops().load(root=root, seed=0)
    except (ValueError, OSError, ImportError) as error:
        return DataCheck((), (str(error),))
    names = ", ".join([*map(shown, data.class_names[:FIRST]), "…"][: data.num_classes])
    summary = [f"{data.name}: {data.num_classes} classes ({names})"]
    faults, looks = list[str](), list[Look]()
    for name, split in _splits(data):
        summary.append(_describe(name, split, data.num_classes))
        if isinstance(split, FileSplit):
            seen = _check_files(name, split, all_images, faults)
            summary[-1] += f", {len(seen)} decoded"
            looks += seen
    if isinstance(data.train, FileSplit) and looks:
        summary.append(_describe_looks(looks))
        summary.append(f"a network trained from scratch sees: {data.train.preparation}")
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


def _describe_looks(looks: Sequence[Look]) -> str:
    """Return the range of the images' sizes, and how many there are of each mode."""
    sizes = sorted((look.size for look in looks), key=math.prod)
    first, middle, last = (
        f"{w} × {h}" for w, h in (sizes[0], sizes[len(sizes) // 2], sizes[-1])
    )
    extent = first if first == last else f"{first} to {last}, median {middle}"
    modes = Counter(look.mode for look in looks).most_common()
    return f"sizes: {extent} pixels; modes: " + ", ".join(f"{n} {m}" for m, n in modes)


def _check_files(
    name: str, split: FileSplit, all_images: bool, faults: list[str]
) -> list[Look]:
    """Add the faults of a split's files; return what the decoded images look like."""
    missing = split.missing()
    if missing:
        faults.append(
            f"{len(missing)} of the {len(split)} images of {name} are missing, the "
            f"first: `{split.images.name(missing[0])}`."
        )
    there = np.setdiff1d(np.arange(len(split)), missing)
    if not all_images and len(there) > SAMPLED:
        there = there[np.linspace(0, len(there) - 1, SAMPLED).astype(int)]
    found = list(_decoded(name, split, there.tolist()))
    broken = [fault for fault in found if isinstance(fault, str)]
    faults += broken[:MOST_NAMED]
    if len(broken) > MOST_NAMED:
        faults.append(f"… and {len(broken) - MOST_NAMED} more of {name}.")
    return [look for look in found if isinstance(look, Look)]


def _decoded(name: str, split: FileSplit, rows: list[int]) -> Iterator[Look | str]:
    """Yield what each image looks like, or a sentence if it is broken."""

    def look(row: int) -> Look | str:
        looks: list[Look] = []

        def decode(encoded: bytes) -> Image.Image:
            image = open_image(encoded)
            looks.append(Look(image.size, image.mode))
            return to_rgb(image)

        try:
            load_image(split.images, row, decode)
        except BrokenImageError as error:
            return f"`{split.images.name(row)}` {error}."
        return looks[0]

    console = Console(stderr=True)
    with ThreadPoolExecutor(default_num_workers()) as pool:  # decoding frees the lock
        yield from track(
            pool.map(look, rows),
            f"decoding {name}",
            total=len(rows),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
