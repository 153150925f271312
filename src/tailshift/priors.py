"""Distributions over classes: made from counts or labels, shifted, and checked.

A *prior* is a vector over the classes that sums to 1; *counts* are integers.
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.deprecation import old_names
from tailshift.files import atomic_write, read_text
from tailshift.registry import did_you_mean
from tailshift.storage import json_text
from tailshift.text import csv_cell, cut

VectorLike: TypeAlias = Tensor | NDArray[Any] | Sequence[float] | Sequence[int]

_SUM_TOLERANCE = 1e-4


def as_prior(
    prior: VectorLike,
    *,
    name: str = "source_prior",
    num_classes: int | None = None,
    like: Tensor | None = None,
    positive: bool = False,
) -> Tensor:
    """Return ``prior`` as a checked tensor of shape (C,).

    Its shape is always checked. Its values are checked too, except those of a prior
    that stays on another device: reading them would make the host wait.

    Args:
        prior: Tensor, array or list, shape (C,).
        name: The argument's name in error messages.
        num_classes: Number of classes that it must have, if known.
        like: Take this tensor's device, and its dtype if that is wider than float32;
            otherwise the result is a float64 tensor on the CPU.
        positive: Refuse zeros.

    Example:
        >>> as_prior([0.75, 0.25])
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    p = as_vector(prior, name).detach()
    if like is None:
        p = p.to("cpu", torch.float64)
    if num_classes is not None and p.numel() != num_classes:
        raise ValueError(
            f"`{name}` has {p.numel()} entries but `logits` has {num_classes} classes."
        )
    if p.device.type == "cpu":
        _check_values(p, name, positive)
    if like is None:
        return p
    return p.to(like.device, torch.promote_types(like.dtype, torch.float32))


def as_vector(values: VectorLike, name: str) -> Tensor:
    """Return ``values`` as a tensor with one entry a class, shape (C,), dtype kept."""
    vector = as_tensor(values, name)
    if vector.ndim != 1 or vector.numel() == 0:
        raise ValueError(
            f"`{name}` must be a vector with one entry a class, "
            f"but has shape {tuple(vector.shape)}."
        )
    return vector


def as_tensor(values: Any, name: str) -> Tensor:
    """Return an array, a data frame, a list or a tensor as a tensor without gradient.

    Memory is shared if torch can; an array that is read-only, reversed or of another
    byte order is copied. A list of floats becomes float64.

    Example:
        >>> as_tensor(np.array([1, 2, 3], ">i2")[::-1], "labels")
        tensor([3, 2, 1], dtype=torch.int16)
    """
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        if array.dtype == object:  # pandas' own kinds of numbers
            array = np.asarray(array.tolist())
        array = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        if min(array.strides, default=0) < 0:  # a single entry, reversed
            array = array.copy()
        return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"`{name}` must be a tensor, an array or a list of numbers, "
            f"but {_what_came(values)}"
        ) from None


def _what_came(values: Any) -> str:
    """Return the end of a sentence about values that are not numbers."""
    is_vector = isinstance(values, Iterable) and getattr(values, "ndim", 1) == 1
    first = next(iter(values), None) if is_vector else None
    if isinstance(first, str) and not isinstance(values, str):
        return (
            f"holds text such as {first[:40]!r}. Give each class by its position, "
            "counted from 0."
        )
    if isinstance(values, np.ndarray):
        return f"is an array of {values.dtype}."
    return f"is {type(values).__name__}."


def _check_values(p: Tensor, name: str, positive: bool) -> None:
    p = p.double()
    classes = f"({p.numel()} classes)"
    if not torch.isfinite(p).all():
        where = int((~torch.isfinite(p)).nonzero()[0])
        raise ValueError(
            f"`{name}` must be finite, but is {p[where].item()} for class {where} "
            f"{classes}. Build it with priors.from_counts(counts)."
        )
    if (p < 0).any():
        where = int(p.argmin())
        raise ValueError(
            f"`{name}` must not be negative, but is {p[where].item():.4g} for class "
            f"{where} {classes}. Build it with priors.from_counts(counts)."
        )
    if abs(p.sum().item() - 1) > _SUM_TOLERANCE:
        raise ValueError(
            f"`{name}` must sum to 1, but sums to {p.sum().item():.4f} {classes}. "
            "Build it with priors.from_counts(counts)."
        )
    if positive and (p == 0).any():
        where = int(p.argmin())
        raise ValueError(
            f"`{name}` must be positive for every class, but is 0 for class {where} "
            f"{classes}. Drop the class or give it a sample."
        )


def from_counts(counts: VectorLike) -> Tensor:
    """Return the prior proportional to ``counts``, float64, shape (C,).

    Example:
        >>> from_counts([30, 10])
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    n = as_vector(counts, "counts").to("cpu", torch.float64)
    if not torch.isfinite(n).all() or (n < 0).any():
        raise ValueError(
            "`counts` must be finite and not negative, "
            f"but holds {n[~(n >= 0) | ~n.isfinite()][0].item():g}."
        )
    if n.sum() == 0:
        raise ValueError(
            f"`counts` must not all be 0 ({n.numel()} classes): there is no sample."
        )
    return n / n.sum()


def counts_from_labels(labels: VectorLike, num_classes: int) -> Tensor:
    """Return how often each class occurs in ``labels``, int64, shape (C,).

    Example:
        >>> counts_from_labels([0, 2, 2], num_classes=3)
        tensor([1, 0, 2])
    """
    y = check_labels(labels, num_classes)
    return torch.bincount(y, minlength=num_classes)


def check_labels(labels: VectorLike, num_classes: int) -> Tensor:
    """Return ``labels`` as an int64 tensor, each in 0..C−1.

    Example:
        >>> check_labels([0, 3], num_classes=3)
        Traceback (most recent call last):
        ...
        ValueError: `labels` must lie in 0..2, but label 1 (counted from 0) is 3.
    """
    y = as_tensor(labels, "labels")
    if y.ndim != 1:
        raise ValueError(f"`labels` must be a vector, but has shape {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        if y.numel() == 0:
            return y.to(torch.int64)
        raise TypeError(f"`labels` must be integers, but are {y.dtype}.")
    y = y.to(torch.int64)
    outside = (y < 0) | (y >= num_classes)
    if outside.any():
        where = int(outside.nonzero()[0])
        raise ValueError(
            f"`labels` must lie in 0..{num_classes - 1}, "
            f"but label {where} (counted from 0) is {y[where].item()}."
        )
    return y


def from_labels(labels: VectorLike, num_classes: int) -> Tensor:
    """Return the share of each class among ``labels``, float64, shape (C,).

    Example:
        >>> from_labels([0, 0, 0, 1], num_classes=2)
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    counts = counts_from_labels(labels, num_classes)
    if counts.sum() == 0:
        raise ValueError("`labels` must not be empty: there is no class to count.")
    return from_counts(counts)


def uniform(num_classes: int) -> Tensor:
    """Return the prior 1/C, float64, shape (C,)."""
    if num_classes < 1:
        raise ValueError(f"`num_classes` must be at least 1, but is {num_classes}.")
    return torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)


def check_imbalance_ratio(imbalance_ratio: float) -> None:
    """Refuse a ratio below 1: it is largest / smallest everywhere."""
    if imbalance_ratio >= 1 and np.isfinite(imbalance_ratio):
        return
    hint = ""
    if 0 < imbalance_ratio < 1:
        hint = f" Did you mean {1 / imbalance_ratio:g}?"
    raise ValueError(
        "`imbalance_ratio` must be >= 1 (largest / smallest count), "
        f"but is {imbalance_ratio:g}.{hint}"
    )


def long_tailed_counts(
    max_count: int, imbalance_ratio: float, num_classes: int
) -> Tensor:
    r"""Return exponentially falling counts, int64, shape (C,).

    .. math:: n_c = \lfloor n_{max} \cdot r^{-c/(C-1)} \rfloor

    Example:
        >>> long_tailed_counts(500, 100, 100)[[0, 1, 98, 99]]
        tensor([500, 477,   5,   5])
    """
    check_imbalance_ratio(imbalance_ratio)
    if num_classes < 1:
        raise ValueError(f"`num_classes` must be at least 1, but is {num_classes}.")
    rank = np.arange(num_classes) / max(num_classes - 1, 1)
    return torch.from_numpy(truncate(max_count * float(imbalance_ratio) ** -rank))


def truncate(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the integers at or below ``values``, int64."""
    # 500 · 100^(−1) may be 4.999…: a hair below an integer is that integer.
    return np.floor(values + 1e-9).astype(np.int64)


def read_counts(
    path: str | os.PathLike[str], class_names: Sequence[str] = ()
) -> Tensor:
    """Return the counts in a file, in the order of the class ids, int64, shape (C,).

    One number per line (in a ``.csv``, the first line may be a heading), or a list in a
    ``.json``, in the order of the class ids; or in any order with the class beside its
    number, as two columns of a ``.csv`` or an object in a ``.json``. If not all numbers
    are whole, they are shares, and float64.

    Args:
        path: The file.
        class_names: One per class. A class is given by its name, or by its id if no
            class has that name.
    """
    path = Path(path)
    rows = _read_rows(path)
    values = [_as_number(row[-1]) for row in rows]
    if path.suffix.lower() == ".csv" and values[0] is None:
        rows, values = rows[1:], values[1:]  # a heading
    if {len(row) for row in rows} not in ({1}, {2}):
        raise ValueError(
            f"{path} must hold a number per class, or each class and its number, but "
            "does not."
        )
    if None in values:
        wrong = rows[values.index(None)][-1]
        raise ValueError(
            f"{path} must hold numbers >= 0, one per class, but holds "
            f"{cut(repr(wrong))}."
        )
    if not any(values):
        raise ValueError(f"{path} must not hold 0 for every class.")
    numbers = [value for value in values if value is not None]
    if len(rows[0]) == 2:
        numbers = _in_order(path, [str(row[0]) for row in rows], numbers, class_names)
    is_whole = all(isinstance(number, int) for number in numbers)
    return torch.tensor(numbers, dtype=torch.int64 if is_whole else torch.float64)


def _read_rows(path: Path) -> list[Sequence[Any]]:
    """Return what a file holds a class: a value, or the class and a value."""
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path} of counts. Write one integer a line, "
            "in the order of the class ids."
        )
    suffix = path.suffix.lower()
    rows: Any = None
    text = read_text(path).strip()
    try:
        if suffix == ".json":
            # An object as a tuple of pairs tells it from a list, and keeps doubles.
            found = json.loads(text, object_pairs_hook=tuple)
            rows = [[value] for value in found] if isinstance(found, list) else found
        elif suffix == ".csv":
            rows = [row or [""] for row in csv.reader(io.StringIO(text))]
        else:
            rows = [[line] for line in text.splitlines()]
    except (ValueError, RecursionError, csv.Error):
        raise ValueError(
            f"{path} is not a file of counts: it cannot be read."
        ) from None
    if not isinstance(rows, list | tuple) or not rows:
        raise ValueError(f"{path} must hold a list of counts, but does not.")
    return list(rows)


def _as_number(value: Any) -> int | float | None:
    """Return a count or share that was read, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    number = as_float(text)
    if not 0 <= number < 2**63 or "_" in text:
        return None
    return int(text) if text.isascii() and text.isdigit() else number


def as_float(text: str) -> float:
    """Return the number that a text writes, NaN if it writes none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def class_ids(class_names: Sequence[str], num_classes: int) -> dict[str, int]:
    """Return the id of each class by its name, and by itself unless it is a name.

    A class is also known by its name as :func:`write_prior` writes it to a ``.csv``.
    """
    ids = {str(c): c for c in range(num_classes)}
    ids |= {csv_cell(name): c for c, name in enumerate(class_names)}
    return ids | {name: c for c, name in enumerate(class_names)}


def _in_order(
    path: Path, names: list[str], numbers: list[int | float], class_names: Sequence[str]
) -> list[int | float]:
    """Return numbers that stand beside their classes in the order of the ids."""
    num_classes = len(class_names) or len(names)
    ids = class_ids(class_names, num_classes)
    unknown = [name for name in names if name not in ids]
    if unknown:
        hint = did_you_mean(unknown[0], list(class_names))
        if not class_names:
            hint = "; class names are not known here, so write class ids."
        name = cut(repr(unknown[0]))
        raise ValueError(f"{path} names an unknown class {name}{hint or '.'}")
    by_id = {ids[name]: number for name, number in zip(names, numbers, strict=True)}
    if len(by_id) < len(names):
        raise ValueError(f"{path} must name each class once, but names one twice.")
    missing = [c for c in range(num_classes) if c not in by_id]
    if missing:
        raise ValueError(
            f"{path} must hold every class, but lacks {class_names[missing[0]]!r}. "
            "Write 0 for a class that does not occur."
        )
    return [by_id[c] for c in range(num_classes)]


def write_prior(
    path: str | os.PathLike[str], prior: VectorLike, class_names: Sequence[str] = ()
) -> None:
    """Write a prior as a file that any target can be read from.

    Class names stand beside the shares in a ``.json`` and a ``.csv``, if each class has
    a name of its own.

    Args:
        path: File to write; it is replaced.
        prior: :math:`p_t`, shape (C,).
        class_names: One per class.
    """
    path, shares = Path(path), as_prior(prior, name="prior").tolist()
    rows: list[tuple[Any, ...]] = [(share,) for share in shares]
    if len(set(class_names)) == len(shares):
        is_csv = path.suffix.lower() == ".csv"
        names = map(csv_cell, class_names) if is_csv else class_names
        rows = list(zip(names, shares, strict=True))
    if path.suffix.lower() == ".json":
        content = dict(rows) if len(rows[0]) == 2 else shares
        text = json_text(content, indent=2) + "\n"
    elif path.suffix.lower() == ".csv":
        lines = io.StringIO()
        heading = ("class", "share")[-len(rows[0]) :]
        csv.writer(lines, lineterminator="\n").writerows([heading, *rows])
        text = lines.getvalue()
    else:
        text = "".join(f"{share!r}\n" for share in shares)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


if not TYPE_CHECKING:
    __getattr__ = old_names(
        __name__,
        {
            name: f"tailshift.targets.{name}"
            for name in ("PAPER_TARGETS", "target_counts", "parse_target")
        },
    )
