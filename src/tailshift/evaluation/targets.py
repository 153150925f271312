"""Targets: label distributions by name or from a file, and test sets drawn to them."""

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tailshift.evaluation.shifts import Shift, is_shift, parse_shift, shift_shares
from tailshift.predictions import as_tensor, check_counts
from tailshift.priors import VectorLike, check_labels, from_counts, scale_counts

Target: TypeAlias = str | os.PathLike[str] | Tensor
"""A shift by name (``"uniform"``, ``"forward:50"`` …), a file of counts, or counts."""

FILE_SUFFIXES = (".txt", ".csv", ".json")


def shifted_subset(labels: VectorLike, counts: VectorLike) -> Tensor:
    """Return the first ``counts[c]`` samples of each class c, in file order.

    Args:
        labels: :math:`y`, class indices, shape (N,).
        counts: Samples to take of each class, shape (C,).

    Returns:
        Their indices, ascending, int64.

    Example:
        >>> shifted_subset([1, 0, 1, 0, 1], counts=[1, 2])
        tensor([0, 1, 2])
    """
    n = check_counts(counts, name="counts")  # (C,)
    y = check_labels(as_tensor(labels, "labels").cpu(), len(n))  # (N,)
    available = torch.bincount(y, minlength=len(n))
    if (n > available).any():
        c = int((n > available).nonzero()[0])
        raise ValueError(
            f"`counts` asks for {n[c].item()} samples of class {c}, "
            f"but `labels` has {available[c].item()}."
        )
    order = y.argsort(stable=True)  # class by class, each in file order
    start = available.cumsum(0) - available  # (C,): where a class begins in `order`
    position = torch.arange(len(y)) - start[y[order]]
    return order[position < n[y[order]]].sort().values


def target_prior(
    target: Target, class_counts: VectorLike, per_class: int | VectorLike
) -> Tensor:
    r"""Return :math:`p_t`, the counts of :func:`resolve_target` divided by their sum.

    Example:
        >>> target_prior("forward:4", class_counts=[9, 5, 1], per_class=8)
        tensor([0.5714, 0.2857, 0.1429], dtype=torch.float64)
    """
    return from_counts(resolve_target(target, class_counts, per_class))


def exact_prior(
    target: Target, class_counts: VectorLike, per_class: int | VectorLike
) -> Tensor:
    r"""Return :math:`p_t` before it is rounded to whole samples, float64, shape (C,).

    It is positive for every class that the test set and the target have, however few
    samples there are to draw; :func:`target_prior` may have lost some.

    Example:
        >>> exact_prior("forward:100", class_counts=[9, 5, 1], per_class=8)
        tensor([0.9009, 0.0901, 0.0090], dtype=torch.float64)
        >>> target_prior("forward:100", class_counts=[9, 5, 1], per_class=8)
        tensor([1., 0., 0.], dtype=torch.float64)
    """
    n, available = _checked_counts(class_counts, per_class)
    wanted = _given_counts(target, len(n))
    if wanted is None:
        return from_counts(shift_shares(parse_shift(str(target)), n, available > 0))
    _check_available(target, wanted, available)
    return from_counts(wanted)


def resolve_target(
    target: Target, class_counts: VectorLike, per_class: int | VectorLike
) -> Tensor:
    """Return how many test samples of each class a target has, int64, shape (C,).

    Args:
        target: A name for :func:`~tailshift.evaluation.shifts.parse_shift`, a file for
            :func:`read_counts`, or counts. Counts beyond what there is are scaled
            down in proportion until they fit, and truncated.
        class_counts: Training images of each class, shape (C,): the order of
            ``forward`` and ``backward``.
        per_class: Test samples that each class has: one number, or one a class. A named
            target starts from the smallest and leaves out classes that have none.

    Example:
        >>> resolve_target("forward:4", class_counts=[9, 5, 1], per_class=8)
        tensor([8, 4, 2])
        >>> resolve_target("knock_out:1", class_counts=[9, 5, 1], per_class=8)
        tensor([8, 0, 8])
        >>> resolve_target(torch.tensor([30, 10, 5]), [9, 5, 1], per_class=6)
        tensor([6, 2, 1])
    """
    n, available = _checked_counts(class_counts, per_class)
    wanted = _given_counts(target, len(n))
    if wanted is None:
        shift = parse_shift(str(target))
        shares = shift_shares(shift, n, available > 0)
        counts = scale_counts(shares, int(available[shares > 0].min()))
        _check_tweak(shift, shares, counts)
        return counts
    _check_available(target, wanted, available)
    return _fit(wanted, available)


def _checked_counts(
    class_counts: VectorLike, per_class: int | VectorLike
) -> tuple[Tensor, Tensor]:
    """Return training images and test samples of each class, both of shape (C,)."""
    n = as_tensor(class_counts, "class_counts").cpu()
    available = as_tensor(per_class, "per_class").cpu()
    if available.numel() not in (1, len(n)):
        raise ValueError(
            f"`per_class` has {available.numel()} entries "
            f"but `class_counts` has {len(n)}."
        )
    if int(available.max()) < 1:
        raise ValueError(
            f"`per_class` must be at least 1, but is {int(available.max())}."
        )
    return n, available.expand(len(n))


def _check_available(target: Target, wanted: Tensor, available: Tensor) -> None:
    missing = (wanted > 0) & (available < 1)
    if missing.any():
        raise ValueError(
            f"Target {describe(target)!r} needs samples of class "
            f"{int(missing.nonzero()[0])}, but the test set has none."
        )


def _check_tweak(shift: Shift, shares: Tensor, counts: Tensor) -> None:
    """Refuse a tweak of which nothing but the one class, or all but it, is left."""
    lost = (shares > 0) & (counts == 0)
    if shift.kind == "tweak" and lost.any():
        c = int(lost.nonzero()[0])
        raise ValueError(
            f"Target {shift.name!r} leaves class {c} less than one sample where the "
            f"largest class has {int(counts.max())}. Take the re-weighted way, which "
            "draws no samples (sampling='reweighted')."
        )


def describe(target: Target) -> str:
    """Return a target as it is named in records: its own name, or ``"counts"``."""
    return "counts" if isinstance(target, Tensor) else os.fspath(target)


def _given_counts(target: Target, num_classes: int) -> Tensor | None:
    """Return the counts that a file or a tensor gives, or None for a target's name."""
    if isinstance(target, Tensor):
        return check_counts(target, name="target", num_classes=num_classes)
    if not is_file(target):
        return None
    counts = read_counts(target)
    if len(counts) != num_classes:
        raise ValueError(
            f"{os.fspath(target)} has {len(counts)} counts "
            f"but there are {num_classes} classes."
        )
    return counts


def is_file(target: str | os.PathLike[str]) -> bool:
    """Say whether a target is a file; a string that names a distribution is not."""
    if not isinstance(target, str):
        return True
    if is_shift(target):
        return False
    path = Path(target)
    return path.suffix.lower() in FILE_SUFFIXES or path.is_file()


def _fit(counts: Tensor, available: Tensor) -> Tensor:
    room = (available.double() / counts).masked_fill(counts == 0, torch.inf)
    tightest = int(room.argmin())
    if counts[tightest] <= available[tightest]:
        return counts
    # Integers throughout, so that the tightest class keeps exactly what there is.
    return counts * available[tightest] // counts[tightest]


def read_counts(path: str | os.PathLike[str]) -> Tensor:
    """Return the counts in a file, in the order of the class ids, int64, shape (C,).

    One integer a line (in a ``.csv``, the first line may be a heading), or in a
    ``.json`` a list of integers.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path} of counts. Write one integer a line, "
            "in the order of the class ids."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = path.suffix.lower() == ".json"
        values = json.loads(text) if is_json else text.strip().splitlines()
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(
            f"{path} is not a file of counts: it cannot be read."
        ) from None
    if not isinstance(values, list) or not values:
        raise ValueError(f"{path} must hold a list of counts, but does not.")
    if path.suffix.lower() == ".csv" and _as_count(values[0]) is None:
        values = values[1:]
    counts = [_as_count(value) for value in values]
    if None in counts:
        wrong = values[counts.index(None)]
        raise ValueError(
            f"{path} must hold integers >= 0, one a class, but holds {wrong!r}."
        )
    if not any(counts):
        raise ValueError(f"{path} must not hold 0 for every class.")
    return torch.tensor(counts, dtype=torch.int64)


def _as_count(value: Any) -> int | None:
    """Return a count that was read, or None for anything else."""
    if isinstance(value, str):
        digits = value.strip()
        return int(digits) if digits.isascii() and digits.isdigit() else None
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and value >= 0 else None
