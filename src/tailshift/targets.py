"""Targets: label distributions by name or from a file, and test sets drawn to them."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from tailshift import priors
from tailshift.checks import as_tensor, check_counts
from tailshift.priors import VectorLike, class_ids, read_counts
from tailshift.registry import did_you_mean
from tailshift.target_names import SOURCE, Shift, is_shift, parse_target
from tailshift.text import cut

Target: TypeAlias = str | os.PathLike[str] | VectorLike
"""A name (``"uniform"``, ``"forward:50"`` …), a file of counts or shares, a vector."""

_FILE_SUFFIXES = (".txt", ".csv", ".json")
PAPER_TARGETS: tuple[str, ...] = (
    *(f"forward:{ratio}" for ratio in (50, 25, 10, 5, 2)),
    "uniform",
    *(f"backward:{ratio}" for ratio in (2, 5, 10, 25, 50)),
)
"""The eleven label distributions of the paper's Tables 6 and 9."""


def is_file(target: str | os.PathLike[str]) -> bool:
    """Return whether a target is a file; a string that names a distribution is not."""
    if not isinstance(target, str):
        return True
    if is_shift(target):
        return False
    path = Path(target)
    return path.suffix.lower() in _FILE_SUFFIXES or path.is_file()


def describe(target: Target) -> str:
    """Return a target as it is named in records: its own name, or ``"counts"``."""
    return os.fspath(target) if isinstance(target, str | os.PathLike) else "counts"


def as_target_prior(
    target: Target,
    *,
    num_classes: int,
    source_counts: VectorLike | None = None,
    class_names: Sequence[str] = (),
) -> Tensor:
    r"""Return :math:`p_t` of a target in any form, float64, shape (C,).

    Args:
        target: A name for :func:`parse_target`, a file for
            :func:`~tailshift.priors.read_counts`, or a prior, shape (C,).
        num_classes: :math:`C`.
        source_counts: Training images of each class, shape (C,), for the targets that
            follow them: ``source``, ``forward`` and ``backward``.
        class_names: One per class, for targets and files that name classes.

    Example:
        >>> as_target_prior("backward:4", num_classes=3, source_counts=[9, 5, 1])
        tensor([0.1429, 0.2857, 0.5714], dtype=torch.float64)
        >>> as_target_prior("tweak:kea:0.8", num_classes=2, class_names=["kea", "kiwi"])
        tensor([0.8000, 0.2000], dtype=torch.float64)
        >>> as_target_prior([0.8, 0.2], num_classes=2)
        tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    if not isinstance(target, str | os.PathLike):
        return priors.as_prior(target, name="target_prior", num_classes=num_classes)
    n = ordering_counts(target, source_counts, num_classes)
    return exact_prior(target, n, per_class=1, class_names=class_names)


def ordering_counts(
    target: Target, source_counts: VectorLike | None, num_classes: int
) -> Tensor:
    """Return the training counts, or zeros if they are unknown and not needed."""
    if source_counts is not None:
        return check_counts(
            source_counts, name="source_counts", num_classes=num_classes
        )
    is_named = isinstance(target, str) and not is_file(target)
    if is_named and parse_target(str(target)).needs_order:
        raise ValueError(
            f"Target {target!r} follows the training counts, which are not known here. "
            "Give `source_counts`, or use 'uniform' or a file of counts."
        )
    return torch.zeros(num_classes, dtype=torch.int64)


def exact_prior(
    target: Target,
    class_counts: VectorLike,
    per_class: int | VectorLike,
    *,
    class_names: Sequence[str] = (),
) -> Tensor:
    r"""Return :math:`p_t` before it is rounded to whole samples, float64, shape (C,).

    It is positive for every class that the test set and the target have, however few
    samples there are to draw. Arguments are those of :func:`target_counts`.

    Example:
        >>> exact_prior("forward:100", class_counts=[9, 5, 1], per_class=8)
        tensor([0.9009, 0.0901, 0.0090], dtype=torch.float64)
    """
    n, available = _checked_counts(class_counts, per_class)
    return priors.from_counts(_wanted(target, n, available, class_names))


def target_counts(
    target: Target,
    class_counts: VectorLike,
    per_class: int | VectorLike,
    *,
    class_names: Sequence[str] = (),
) -> Tensor:
    r"""Return the counts of a shifted test set, int64, shape (C,).

    With the classes sorted by training count (descending, ties by class id) and rank
    :math:`k = 0 \ldots C-1`,

    .. math:: n_k = \lfloor M \cdot \mu^{-k/(C-1)} \rfloor

    for ``forward:μ``; ``backward:μ`` reverses the ranks.

    Args:
        target: A name for :func:`parse_target`, a file for
            :func:`~tailshift.priors.read_counts`, or counts. Counts beyond what there
            is are scaled down in proportion until they fit, and truncated.
        class_counts: Training images of each class, shape (C,): the order of
            ``forward`` and ``backward``.
        per_class: :math:`M`, test samples that each class has: one number, or one per
            class. Names and shares start from the smallest; a name skips classes
            that have none.
        class_names: One per class, for targets and files that name classes.

    Example:
        >>> target_counts("backward:4", class_counts=[9, 1, 5], per_class=8)
        tensor([2, 8, 4])
        >>> target_counts("knock_out:1", class_counts=[9, 5, 1], per_class=8)
        tensor([8, 0, 8])
        >>> target_counts(torch.tensor([30, 10, 5]), [9, 5, 1], per_class=6)
        tensor([6, 2, 1])
    """
    n, available = _checked_counts(class_counts, per_class)
    wanted = _wanted(target, n, available, class_names)
    if not wanted.is_floating_point():
        return _fit(wanted, available)
    smallest = int(available[wanted > 0].min())
    shares = (wanted / wanted.max()).numpy()
    counts = torch.from_numpy(priors.truncate(smallest * shares))
    lost = (wanted > 0) & (counts == 0)
    if describe(target).startswith("tweak:") and lost.any():
        raise ValueError(
            f"Target {target!r} leaves class {int(lost.nonzero()[0])} less than one "
            f"sample if the largest class has {int(counts.max())}. Use the "
            "re-weighted way, which draws no samples (sampling='reweighted')."
        )
    return counts


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


def _wanted(
    target: Target, n: Tensor, available: Tensor, class_names: Sequence[str]
) -> Tensor:
    """Return the counts (integers) or shares (float64) of a target, shape (C,)."""
    if not isinstance(target, str | os.PathLike):
        wanted = check_counts(target, name="target", num_classes=len(n))
    elif is_file(target):
        wanted = read_counts(target, class_names)
    elif target == SOURCE:
        wanted = n
    else:
        return _shares(parse_target(str(target)), n, available > 0, class_names)
    if len(wanted) != len(n):
        raise ValueError(
            f"{describe(target)} has {len(wanted)} counts "
            f"but there are {len(n)} classes."
        )
    missing = (wanted > 0) & (available < 1)
    if missing.any():
        raise ValueError(
            f"Target {describe(target)!r} needs samples of class "
            f"{int(missing.nonzero()[0])}, but the test set has none."
        )
    return wanted


def _fit(counts: Tensor, available: Tensor) -> Tensor:
    room = (available.double() / counts).masked_fill(counts == 0, torch.inf)
    tightest = int(room.argmin())
    if counts[tightest] <= available[tightest]:
        return counts
    # Integers throughout, so that the tightest class keeps exactly what there is.
    return counts * available[tightest] // counts[tightest]


def _shares(
    shift: Shift, n: Tensor, present: Tensor, class_names: Sequence[str]
) -> Tensor:
    """Return how many samples classes have, the largest 1, float64, shape (C,).

    Classes that are not present get nothing; the target is laid over the others.
    """
    if shift.shares:
        return _given_shares(shift, present, class_names)
    chosen = _chosen(shift, present, class_names)
    shares = torch.zeros(len(n), dtype=torch.float64)
    shares[present] = _shares_of_present(shift, n[present])
    if shift.kind == "tweak":
        others = int(present.sum()) - 1
        shares[chosen] = shift.value / (1 - shift.value) * max(others, 1)
    if shift.kind == "knock_out":
        shares[chosen] = 0.0
    return shares / shares.max()


def _given_shares(shift: Shift, present: Tensor, class_names: Sequence[str]) -> Tensor:
    """Return shares written by hand, the largest 1; unnamed classes share the rest."""
    given = torch.tensor(shift.shares, dtype=torch.float64)
    if not shift.classes:
        if len(given) != len(present):
            raise ValueError(
                f"Target {shift.name!r} has {len(given)} shares but there are "
                f"{len(present)} classes."
            )
        shares = given
    else:
        ids = class_ids(class_names, len(present))
        chosen = [_class_id(shift, name, ids, class_names) for name in shift.classes]
        others = present.clone()
        others[chosen] = False
        rest = max(1 - math.fsum(shift.shares), 0.0)
        if rest > 0.01 and not others.any():
            raise ValueError(
                f"Target {shift.name!r} names every class, so its shares must sum to "
                f"1, but the sum is {1 - rest:g}."
            )
        shares = others * (rest / max(int(others.sum()), 1))
        shares = shares.double().index_put((torch.tensor(chosen),), given)
    missing = (shares > 0) & ~present
    if missing.any():
        raise ValueError(
            f"Target {shift.name!r} needs samples of class "
            f"{int(missing.nonzero()[0])}, but the test set has none."
        )
    return shares / shares.max()


def _class_id(
    shift: Shift, name: str, ids: Mapping[str, int], class_names: Sequence[str]
) -> int:
    if name not in ids:
        raise ValueError(_unknown_class(shift, name, len(ids), class_names))
    return ids[name]


def _shares_of_present(shift: Shift, n: Tensor) -> Tensor:
    num_classes = len(n)
    rng = np.random.default_rng(shift.seed)
    if shift.kind == "dirichlet":
        return torch.from_numpy(rng.dirichlet(np.full(num_classes, shift.value)))
    if shift.kind not in ("forward", "backward", "permuted"):
        return torch.ones(num_classes, dtype=torch.float64)
    order = n.double().numpy()
    if shift.kind == "permuted":
        order = rng.permutation(num_classes).astype(np.float64)
    rank = np.empty(num_classes)
    rank[np.argsort(-order, kind="stable")] = np.arange(num_classes)
    if shift.kind == "backward":
        rank = num_classes - 1 - rank
    return torch.from_numpy(shift.value ** -(rank / max(num_classes - 1, 1)))


def _few(class_names: Sequence[str]) -> str:
    """Return the first five names, for a message."""
    names = [cut(repr(name), 40) for name in class_names[:5]]
    return ", ".join([*names, "…"] if len(class_names) > 5 else names)


def _unknown_class(
    shift: Shift, name: str, num_classes: int, class_names: Sequence[str]
) -> str:
    """Return the error for a class that is not there."""
    known = f"there are {num_classes} classes, 0 to {num_classes - 1}"
    if class_names and not name.isdigit():
        known = f"the classes are {_few(class_names)}"
    suggestion = did_you_mean(name, list(class_names)) or "."
    return f"Target {shift.name!r} names class {name}, but {known}{suggestion}"


def _chosen(shift: Shift, present: Tensor, class_names: Sequence[str]) -> list[int]:
    """Return the ids of the classes that a target names; refuse what cannot be."""
    num_classes = len(present)
    ids = class_ids(class_names, num_classes)
    whole = ",".join(shift.classes)
    names = [whole] if whole in ids else shift.classes  # a name may hold commas
    unknown = [name for name in names if name not in ids]
    if unknown:
        raise ValueError(_unknown_class(shift, unknown[0], num_classes, class_names))
    chosen = sorted({ids[name] for name in names})
    if shift.kind == "tweak" and not present[chosen].all():
        raise ValueError(
            f"Target {shift.name!r} needs samples of class {names[0]}, "
            "but the test set has none."
        )
    if shift.kind == "knock_out" and present[chosen].sum() == present.sum():
        raise ValueError(f"Target {shift.name!r} must leave a class of the test set.")
    return chosen
