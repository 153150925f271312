"""Put a data set together from files: three splits, checked against each other."""

from collections.abc import Mapping
from itertools import combinations

from tailshift.data.dataset import LongTailedData
from tailshift.data.file_loader import MEND
from tailshift.data.file_split import FileSplit


def file_data(
    name: str, splits: Mapping[str, FileSplit], class_names: tuple[str, ...]
) -> LongTailedData:
    """Return the data of `splits` ``train``, ``test`` and, where there is one, ``val``.

    Every file must be there, before hours are spent, unless broken images are skipped;
    no image may be in two splits.
    """
    for split_name, split in splits.items():
        _check_present(split_name, split)
    for first, second in combinations(splits, 2):
        _check_disjoint(first, splits[first], second, splits[second])
    train = splits["train"]
    return LongTailedData(
        name=name,
        train=train,
        val=splits.get("val"),
        test=splits["test"],
        class_names=class_names,
        fingerprint=train.fingerprint(),
    )


def _check_present(name: str, split: FileSplit) -> None:
    missing = [] if split.skip_broken else split.missing()
    if missing:
        raise FileNotFoundError(
            f"`{split.images.name(missing[0])}` is missing, one of {len(missing)} "
            f"missing of the {len(split)} images of {name}. {MEND}"
        )


def _check_disjoint(
    first: str, split: FileSplit, second: str, other: FileSplit
) -> None:
    shared = set(split.keys()) & set(other.keys())
    if shared:
        raise ValueError(
            f"an image must be in one split only, but {min(shared)} is in {first} and "
            f"in {second} ({len(shared)} such)."
        )
