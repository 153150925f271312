"""Shifts: label distributions by name, from the paper's to random ones."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tailshift.priors import target_shares

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
