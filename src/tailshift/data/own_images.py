"""Images of your own: what a folder, a CSV, a list and a Parquet table share."""

import hashlib
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.dataset import Dataset, LongTailedData
from tailshift.data.image_split import FileSplit, file_data
from tailshift.data.images import (
    BrokenImageError,
    EncodedImages,
    Fit,
    Preparation,
    load_image,
)
from tailshift.models import MOST_SMALL


def hold_out(
    keys: Sequence[str],
    labels: Tensor,
    fractions: Mapping[str, float],
    *,
    seed: int = 0,
) -> dict[str, NDArray[np.int64]]:
    """Return the positions of each held-out split and of ``train``, ascending.

    Of n images of a class a split gets its fraction, rounded, but at least one; the
    last image stays in training, and if that leaves too few the earlier split goes
    first. What is chosen does not depend on the images' order.

    Args:
        keys: What tells each image apart.
        labels: Class indices, shape (N,).
        fractions: Share of each split, in (0, 1), in the order they are filled.
        seed: Another seed chooses other images.

    Example:
        >>> import torch
        >>> keys = [f"{i}.jpg" for i in range(12)]
        >>> labels = torch.tensor([0] * 9 + [1] * 2 + [2])
        >>> chosen = hold_out(keys, labels, {"test": 0.3, "val": 0.1})
        >>> {split: labels[ids].tolist() for split, ids in chosen.items()}
        {'test': [0, 0, 0, 1], 'val': [0], 'train': [0, 0, 0, 0, 0, 1, 2]}
    """
    hashes = [hashlib.sha256(_bytes(f"{key}\0{seed}")).digest() for key in keys]
    chosen: dict[str, list[int]] = {split: [] for split in (*fractions, "train")}
    classes: dict[int, list[int]] = {}
    for i in sorted(range(len(keys)), key=hashes.__getitem__):
        classes.setdefault(int(labels[i]), []).append(i)
    for members in classes.values():
        left = len(members)
        for split, fraction in fractions.items():
            count = min(max(1, int(fraction * len(members) + 0.5)), left - 1)
            chosen[split] += members[left - count : left]
            left -= count
        chosen["train"] += members[:left]
    return {split: np.sort(np.array(ids, np.int64)) for split, ids in chosen.items()}


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")  # a file's name may be no UTF-8


SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""How splits may be called, in any case, and what they are called here."""

NUM_MEASURED = 256

MILD_AREA = 0.35
"""The smallest share of an image that a gentle crop shows."""


class Found(NamedTuple):
    """What was read: splits by name, at least ``train``, and the class names."""

    splits: dict[str, FileSplit]
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class OwnImages(Dataset):
    """Base of the forms that somebody's own images come in."""

    form: ClassVar[str]
    """What `path` names, for messages."""

    path: str = ""
    """Path of the folder or file."""

    image_size: int = 0
    """Height and width of what the network sees; 0 takes the median of the images,
    rounded to a multiple of 32, at most 224."""

    val_fraction: float = 0.1
    """Share of each class held out for validation, if no such split is given; 0
    does without one."""

    test_fraction: float = 0.2
    """Share of each class held out for the test, if no such split is given."""

    split_seed: int = 0
    """Another seed holds out other images."""

    augment: Literal["none", "gentle", "standard", "auto", "rand"] = "gentle"
    """How training images vary. ``"gentle"``: images of up to 64 pixels are shifted by
    up to an eighth, larger ones cropped to 35 to 100 % of their area; ``"standard"`` is
    the crop of ImageNet, 8 to 100 %, and cuts a margin off in evaluation. ``"auto"``
    adds AutoAugment with the policy learnt on ImageNet to ``"gentle"``, ``"rand"``
    RandAugment."""

    flip: bool = False
    """Mirror training images at random; not for writing, road signs and the like."""

    jitter: float = 0.0
    """Share by which brightness, contrast and saturation vary in training."""

    skip_broken: bool = False
    """Skip images that are missing or cannot be decoded, instead of stopping."""

    cutout: int = 0
    """Side in pixels of a random square of each training image that is set to the mean
    pixel; 0 for none."""

    @property
    def option(self) -> str:
        """What `tailshift train` needs besides a recipe to find the data."""
        return f"--data {self.name}:PATH"

    def __post_init__(self) -> None:
        self.preparation(self.image_size or 224)  # checks what it is given
        for name in ("val_fraction", "test_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` must be in [0, 1), but is {getattr(self, name):g}."
                )
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                "`val_fraction` and `test_fraction` must sum to less than 1, but sum "
                f"to {self.val_fraction + self.test_fraction:g}."
            )

    @abstractmethod
    def read(self, path: Path) -> Found:
        """Return the splits that there are."""

    def load(self, *, root: Path | None = None, seed: int = 0) -> LongTailedData:
        """Return the data; `path` is relative to the current folder.

        Args:
            root: Not used.
            seed: Not used: `split_seed` decides what is held out.
        """
        if not self.path:
            raise ValueError(
                f"`path` must name {self.form}, but is empty. Give it with --data "
                f"{self.name}:PATH."
            )
        found = self.read(Path(self.path).expanduser())
        if len(found.class_names) < 2:
            came = (
                f"one class, {found.class_names[0]!r}" if found.class_names else "none"
            )
            raise ValueError(
                f"`{self.path}` must have images of two classes at least, but has "
                f"{came}."
            )
        splits = self._with_hold_out(found.splits)
        check_every_name(splits["train"].labels, found.class_names, self.path)
        _warn_of_untested(splits["test"].labels, found.class_names)
        size = self.image_size or median_size(splits["train"].images)
        ready = {
            name: replace(
                split,
                preparation=self.preparation(size),
                skip_broken=self.skip_broken,
            )
            for name, split in splits.items()
        }
        return file_data(self.name, ready, found.class_names)

    def preparation(self, image_size: int) -> Preparation:
        """Return what `augment` means for images of a size."""
        make = partial(
            Preparation,
            image_size,
            flip=self.flip,
            jitter=self.jitter,
            policy=self.augment if self.augment in ("auto", "rand") else "none",
            cutout=self.cutout,
        )
        if self.augment == "standard":
            return make()
        is_small = image_size <= MOST_SMALL
        fit: Fit = "whole" if is_small else "margin"  # small ones have none to spare
        if self.augment == "none":
            return make(crop="none", fit=fit)
        return make(crop="padded" if is_small else "resized", area=MILD_AREA, fit=fit)

    def without_stops(self) -> Self:
        """Return the data set that skips images that are missing."""
        return replace(self, skip_broken=True)

    def _with_hold_out(self, splits: dict[str, FileSplit]) -> dict[str, FileSplit]:
        wanted = {"test": self.test_fraction, "val": self.val_fraction}
        fractions = {
            name: share
            for name, share in wanted.items()
            if share and name not in splits
        }
        if "test" not in splits and "test" not in fractions:
            raise ValueError(
                f"`test_fraction` must be > 0 if `{self.path}` has no test split, "
                "but is 0."
            )
        whole = splits["train"]
        parts = hold_out(whole.keys(), whole.labels, fractions, seed=self.split_seed)
        held = {
            name: whole.subset(torch.from_numpy(rows)) for name, rows in parts.items()
        }
        found = splits | {name: split for name, split in held.items() if len(split)}
        if "test" not in found:
            raise ValueError(
                f"`{self.path}` must have two images of some class, to hold one out "
                "for the test, but has one of each. Add images or a test split."
            )
        return found


def check_every_name(labels: Tensor, class_names: Sequence[str], where: str) -> None:
    """Refuse training labels that leave a class without any image."""
    counts = torch.bincount(labels, minlength=len(class_names))
    if (counts == 0).any():
        name = class_names[int(counts.argmin())]
        raise ValueError(
            f"`{where}` must have a training image of every class, but has none of "
            f"{name!r}."
        )


class UntestedClassWarning(UserWarning):
    """The test split has no image of some class."""


def _warn_of_untested(labels: Tensor, class_names: Sequence[str]) -> None:
    counts = torch.bincount(labels, minlength=len(class_names))
    untested = [name for name, n in zip(class_names, counts, strict=True) if not n]
    if untested:
        warnings.warn(
            f"the test split has no image of {len(untested)} of the "
            f"{len(class_names)} classes, the first: {untested[0]!r}. Add images to "
            "judge them too; a single one stays in training.",
            UntestedClassWarning,
            stacklevel=3,
        )


def median_size(images: EncodedImages) -> int:
    """Return the median of the shorter sides, as a multiple of 32 in 32..224."""
    rows = np.linspace(0, len(images) - 1, min(len(images), NUM_MEASURED)).astype(int)
    sides = []
    for row in rows.tolist():
        try:
            sides.append(min(load_image(images, row).size))
        except BrokenImageError:  # named when it is trained on
            continue
    median = float(np.median(sides)) if sides else 224.0
    return min(max(32 * int(median / 32 + 0.5), 32), 224)


def number_labels(
    labels: Sequence[str],
) -> tuple[Tensor, tuple[str, ...]]:
    """Return class indices and class names of labels given as text.

    Integers are sorted as numbers, anything else as text.

    Example:
        >>> number_labels(["dog", "cat", "dog"])
        (tensor([1, 0, 1]), ('cat', 'dog'))
        >>> number_labels(["10", "2", "10"])
        (tensor([1, 0, 1]), ('2', '10'))
    """
    distinct = sorted(set(labels))
    if all(_is_plain_integer(label) for label in distinct):
        distinct.sort(key=int)
    index = {label: c for c, label in enumerate(distinct)}
    return torch.tensor([index[label] for label in labels]), tuple(distinct)


def _is_plain_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    is_short = len(digits) < 1000  # Python refuses to read very long ones
    is_number = digits.isascii() and digits.isdigit()
    return is_short and is_number and str(int(text)) == text
