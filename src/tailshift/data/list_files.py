"""List files, one image a line, `relative/path.jpg label`, and their class names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from tailshift.data.images import is_inside
from tailshift.files import read_text
from tailshift.text import cut


def folder_names(
    paths: Sequence[str], labels: Tensor, num_classes: int
) -> tuple[str, ...]:
    """Return the folder of each class's images, or ``class c`` if there is not one.

    As many of the last folders are named as it takes to tell all classes apart.

    Example:
        >>> from torch import tensor
        >>> paths = ["train/bar/1.jpg", "train/cafe/2.jpg", "train/cafe/3.jpg"]
        >>> folder_names(paths, tensor([0, 1, 1]), num_classes=2)
        ('bar', 'cafe')
        >>> folder_names(["a/shop/1.jpg", "b/shop/2.jpg"], tensor([0, 1]), 2)
        ('a/shop', 'b/shop')
        >>> folder_names(["all/1.jpg", "all/2.jpg"], tensor([0, 1]), 2)
        ('class 0', 'class 1')
    """
    folders: list[set[str]] = [set() for _ in range(num_classes)]
    for path, label in zip(paths, labels.tolist(), strict=True):
        folders[label].add(path.rpartition("/")[0])
    numbers = tuple(f"class {c}" for c in range(num_classes))
    if any(len(of_class) != 1 or "" in of_class for of_class in folders):
        return numbers
    parts = [PurePosixPath(*of_class).parts for of_class in folders]
    for depth in range(1, max(len(folder) for folder in parts) + 1):
        names = tuple("/".join(folder[-depth:]) for folder in parts)
        if len(set(names)) == num_classes:
            return names
    return numbers


MOST_DIGITS = 19  # of an integer that a tensor can hold for certain
MOST_LIST = 2**30
"""The largest list of images that is read, in bytes: some ten million lines."""


@dataclass(frozen=True, eq=False)
class LabelledPaths:
    """Paths of images from one folder, and their labels."""

    paths: tuple[str, ...]
    """With forward slashes; no two are equal."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""


def read_list(file: Path, *, num_classes: int | None = None) -> LabelledPaths:
    """Return what a list file holds.

    Args:
        file: Lines of a path and a class index, with white space between; empty lines
            are skipped.
        num_classes: C, if it is known: labels must be below it.
    """
    paths, labels, first_seen = [], [], dict[str, int]()
    lines = read_text(file, MOST_LIST).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        path, label = _parse(line, f"`{file}` line {number}", num_classes)
        note_path(path, number, first_seen, file)
        paths.append(path)
        labels.append(label)
    if not paths:
        raise ValueError(
            f"`{file}` must list images, one `relative/path.jpg label` a line, but is "
            "empty."
        )
    return LabelledPaths(tuple(paths), torch.tensor(labels))


def _parse(line: str, where: str, num_classes: int | None) -> tuple[str, int]:
    parts = line.rsplit(maxsplit=1)
    if len(parts) != 2 or not _is_integer(parts[1]):
        raise ValueError(
            f"{where} must be `relative/path.jpg label`, but is {cut(line.strip())!r}."
        )
    label = int(parts[1])
    if label < 0 or (num_classes is not None and label >= num_classes):
        rule = ">= 0" if num_classes is None else f"in 0..{num_classes - 1}"
        raise ValueError(f"{where} must have a label {rule}, but has {label}.")
    return checked_path(parts[0].strip(), where), label


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return text.isascii() and digits.isdigit() and len(digits) < MOST_DIGITS


def checked_path(path: str, where: str) -> str:
    r"""Return a path with forward slashes; refuse one that leaves the image folder.

    Example:
        >>> checked_path(r"birds\kea.jpg", "line 1")  # as Windows writes it
        'birds/kea.jpg'
    """
    path = path.replace("\\", "/")
    if not is_inside(path):
        raise ValueError(
            f"{where} must name a path inside the image folder, but names "
            f"{shown(path)}. Write it relative to that folder, without `..`."
        )
    return PurePath(path).as_posix()


def shown(text: str) -> str:
    r"""Return a text for a message of one line: in quotes if it would break it.

    Example:
        >>> print(shown("a b.jpg"), shown("a\nb.jpg"))
        a b.jpg 'a\nb.jpg'
    """
    short = cut(text)
    return short if short.isprintable() else repr(short)


def note_path(path: str, line: int, first_seen: dict[str, int], file: Path) -> None:
    """Keep the line that names a path; refuse one that an earlier line names."""
    if path in first_seen:
        raise ValueError(
            f"`{file}` line {line} names {shown(path)} again, which stands in line "
            f"{first_seen[path]}. Remove one of the two."
        )
    first_seen[path] = line


def check_every_class(labels: Tensor, num_classes: int, where: str) -> None:
    """Refuse training labels that leave a class without any image."""
    there = np.unique(labels.numpy())  # not bincount: a label may be any number
    if len(there) < num_classes:
        in_order = there == np.arange(len(there))
        c = len(there) if in_order.all() else int(in_order.argmin())
        raise ValueError(
            f"{where} must list an image of every class in 0..{num_classes - 1}, but "
            f"has none of class {c}."
        )
