"""Targets: label distributions by name or from a file, and test sets drawn to them."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import as_tensor, check_counts
from tailshift.priors import (
    VectorLike,
    _truncate,
    as_vector,
    check_labels,
    from_counts,
)

USAGES = (
    "uniform",
    "forward:RATIO",
    "backward:RATIO",
    "permuted:RATIO",
    "dirichlet:ALPHA",
    "tweak:CLASS:SHARE",
    "knock_out:CLASS,CLASS",
)
"""The names that are understood; permuted and dirichlet take a ``:seedN`` more."""

HELP = f"{', '.join(USAGES)} or a file of counts."


@dataclass(frozen=True)
class Shift:
    """A label distribution by name.

    ``uniform``; ``forward:50`` and ``backward:50``, a long tail in the order of the
    training counts or against it; ``permuted:50``, a long tail in random order;
    ``dirichlet:1``, drawn from Dirichlet(α, …, α); ``tweak:3:0.5``, class 3 has half
    of the samples and the others share the rest; ``knock_out:3,7``, without these
    classes, the others alike. The random ones are those of seed 0, or of the seed in
    ``permuted:50:seed3``.
    """

    name: str
    """The shift as it was written."""
    kind: str
    value: float = 1.0
    """Ratio, α, or the share of the tweaked class."""
    classes: tuple[int, ...] = ()
    """The tweaked class, or those knocked out."""
    seed: int = 0

    @property
    def needs_order(self) -> bool:
        """Whether the training counts decide which class gets what."""
        return self.kind in ("forward", "backward")


def is_shift(name: str) -> bool:
    """Say whether a name begins as that of a shift does, rightly written or not."""
    return name.partition(":")[0] in {usage.partition(":")[0] for usage in USAGES}


def parse_shift(name: str) -> Shift:
    """Return the parts of a shift's name.

    Example:
        >>> parse_shift("dirichlet:0.5:seed3").seed
        3
        >>> parse_shift("knock_out:3,7").classes
        (3, 7)
    """
    kind, *parts = name.split(":")
    try:
        return _parsed(name, kind, parts)
    except ValueError:
        pass
    usage = [usage for usage in USAGES if usage.partition(":")[0] == kind]
    if usage:
        raise ValueError(
            f"`target` must be like {usage[0]}, {_RULES[kind]}, but is {name!r}."
        )
    raise ValueError(
        f"`target` must be one of {', '.join(USAGES)}, as_is, or a file of counts, "
        f"but is {name!r}."
    )


_RULES = {
    "uniform": "with nothing behind it",
    "forward": "with a ratio >= 1",
    "backward": "with a ratio >= 1",
    "permuted": "with a ratio >= 1 and perhaps :seedN",
    "dirichlet": "with α > 0 and perhaps :seedN",
    "tweak": "with a class id and a share between 0 and 1",
    "knock_out": "with class ids",
}


def _parsed(name: str, kind: str, parts: list[str]) -> Shift:
    """Return the shift; ValueError for any fault."""
    seed = 0
    if kind in ("permuted", "dirichlet") and len(parts) == 2:
        word, seed_text = parts[-1][:4], parts.pop()[4:]
        if word != "seed":
            raise ValueError
        seed = _index(seed_text)
    numbers = {"uniform": 0, "tweak": 2}.get(kind, 1)
    if kind not in _RULES or len(parts) != numbers:
        raise ValueError
    if kind == "uniform":
        return Shift(name, kind)
    if kind == "knock_out":
        knocked_out = {_index(part) for part in parts[0].split(",")}
        return Shift(name, kind, classes=tuple(sorted(knocked_out)))
    value = float(parts[-1])
    classes = (_index(parts[0]),) if kind == "tweak" else ()
    low, high = {"dirichlet": (0.0, math.inf), "tweak": (0.0, 1.0)}.get(
        kind, (math.nextafter(1, 0), math.inf)
    )
    if not low < value < high:
        raise ValueError
    return Shift(name, kind, value, classes, seed)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def shift_shares(shift: Shift, class_counts: Tensor, present: Tensor) -> Tensor:
    r"""Return how many samples classes have, the largest 1, float64, shape (C,).

    Args:
        shift: From :func:`parse_shift`.
        class_counts: Training images of each class, shape (C,): the order of
            ``forward`` and ``backward``.
        present: Which classes the test set has, shape (C,). The others get nothing;
            a long tail is laid over those that are left.

    Example:
        >>> everything = torch.ones(3, dtype=torch.bool)
        >>> counts = torch.tensor([9, 5, 1])
        >>> shift_shares(parse_shift("tweak:0:0.5"), counts, everything)
        tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    _check_classes(shift, present)
    shares = torch.zeros(len(class_counts), dtype=torch.float64)
    shares[present] = _shares_of_present(shift, class_counts[present])
    if shift.kind == "tweak":
        others = int(present.sum()) - 1
        shares[shift.classes[0]] = shift.value / (1 - shift.value) * max(others, 1)
    if shift.kind == "knock_out":
        shares[list(shift.classes)] = 0.0
    return shares / shares.max()


def _shares_of_present(shift: Shift, class_counts: Tensor) -> Tensor:
    num_classes = len(class_counts)
    rng = np.random.default_rng(shift.seed)
    if shift.kind == "dirichlet":
        return torch.from_numpy(rng.dirichlet(np.full(num_classes, shift.value)))
    if shift.kind == "permuted":
        order = rng.permutation(num_classes)
        return target_shares(f"forward:{shift.value!r}", order)
    if shift.needs_order:
        return target_shares(shift.name, class_counts)
    return torch.ones(num_classes, dtype=torch.float64)


def _check_classes(shift: Shift, present: Tensor) -> None:
    """Refuse classes that are not there, and a knock-out of all."""
    num_classes = len(present)
    beyond = [c for c in shift.classes if c >= num_classes]
    if beyond:
        raise ValueError(
            f"Target {shift.name!r} names class {beyond[0]}, "
            f"but there are {num_classes} classes, 0 to {num_classes - 1}."
        )
    named = present[list(shift.classes)]
    if shift.kind == "tweak" and not named.all():
        raise ValueError(
            f"Target {shift.name!r} needs samples of class {shift.classes[0]}, "
            "but the test set has none."
        )
    if shift.kind == "knock_out" and named.sum() == present.sum():
        raise ValueError(f"Target {shift.name!r} must leave a class of the test set.")


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
        target: A name for :func:`~tailshift.targets.parse_shift`, a file for
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


PAPER_TARGETS: tuple[str, ...] = (
    *(f"forward:{ratio}" for ratio in (50, 25, 10, 5, 2)),
    "uniform",
    *(f"backward:{ratio}" for ratio in (2, 5, 10, 25, 50)),
)
"""The eleven label distributions of the paper's Tables 6 and 9."""


@dataclass(frozen=True)
class TargetSpec:
    """A label distribution by name: ``uniform``, ``forward:50``, ``backward:10``."""

    kind: Literal["uniform", "forward", "backward"]
    ratio: float = 1.0


def parse_target(spec: str) -> TargetSpec:
    """Return the parts of a target's name.

    Example:
        >>> parse_target("backward:10")
        TargetSpec(kind='backward', ratio=10.0)
    """
    kind, _, ratio = spec.partition(":")
    if kind == "uniform" and not ratio:
        return TargetSpec("uniform")
    try:
        value = float(ratio)
    except ValueError:
        value = float("nan")
    if kind not in ("forward", "backward") or not 1 <= value < float("inf"):
        raise ValueError(
            "`target` must be 'uniform', 'forward:RATIO' or 'backward:RATIO' "
            f"with a ratio >= 1, but is {spec!r}."
        )
    return TargetSpec("forward" if kind == "forward" else "backward", value)


def target_counts(spec: str, class_counts: VectorLike, per_class: int) -> Tensor:
    r"""Return the counts of a shifted test set, int64, shape (C,).

    With the classes sorted by training count (descending, ties by class id) and rank
    :math:`k = 0 \ldots C-1`,

    .. math:: n_k = \lfloor M \cdot \mu^{-k/(C-1)} \rfloor

    for ``forward:μ``; ``backward:μ`` reverses the ranks.

    Args:
        spec: ``"uniform"``, ``"forward:50"``, ``"backward:10"`` …
        class_counts: Training images of each class, shape (C,), to order them by.
        per_class: :math:`M`, test images of each class before thinning.

    Example:
        >>> target_counts("backward:4", class_counts=[9, 1, 5], per_class=8)
        tensor([2, 8, 4])
    """
    shares = target_shares(spec, class_counts)
    if per_class < 1:
        raise ValueError(f"`per_class` must be at least 1, but is {per_class}.")
    return scale_counts(shares, per_class)


def target_shares(spec: str, class_counts: VectorLike) -> Tensor:
    r"""Return :math:`\mu^{-k/(C-1)}` of each class, float64, shape (C,).

    As in :func:`target_counts`, before it is multiplied by :math:`M` and truncated.

    Example:
        >>> target_shares("backward:4", class_counts=[9, 1, 5])
        tensor([0.2500, 1.0000, 0.5000], dtype=torch.float64)
    """
    target = parse_target(spec)
    n = as_vector(class_counts, "class_counts").cpu().numpy()
    rank = np.empty(len(n), dtype=np.float64)
    rank[np.argsort(-n.astype(np.float64), kind="stable")] = np.arange(len(n))
    if target.kind == "backward":
        rank = len(n) - 1 - rank
    return torch.from_numpy(target.ratio ** -(rank / max(len(n) - 1, 1)))


def scale_counts(shares: Tensor, per_class: int) -> Tensor:
    """Return ⌊M · share⌋ of each class, int64, shape (C,)."""
    return torch.from_numpy(_truncate(per_class * shares.double().numpy()))
