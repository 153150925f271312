"""Distributions over classes: made from counts or labels, shifted, and checked.

A *prior* is a vector over the classes that sums to 1; *counts* are integers.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VectorLike: TypeAlias = Tensor | NDArray[Any] | Sequence[float] | Sequence[int]

SUM_TOLERANCE = 1e-4


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
        num_classes: Number of classes that it must have, where known.
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
    try:
        # Through NumPy, so that a list of floats keeps float64.
        vector = torch.as_tensor(
            values if isinstance(values, Tensor) else np.asarray(values)
        )
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"`{name}` must be a tensor, an array or a list of numbers, "
            f"but is {type(values).__name__}."
        ) from None
    if vector.ndim != 1 or vector.numel() == 0:
        raise ValueError(
            f"`{name}` must be a vector with one entry a class, "
            f"but has shape {tuple(vector.shape)}."
        )
    return vector


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
    if abs(p.sum().item() - 1) > SUM_TOLERANCE:
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
    y = torch.as_tensor(np.asarray(labels) if isinstance(labels, list) else labels)
    if y.ndim != 1:
        raise ValueError(f"`labels` must be a vector, but has shape {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        if y.numel() == 0:
            return y.to(torch.int64)
        raise TypeError(f"`labels` must be integers, but are {y.dtype}.")
    outside = (y < 0) | (y >= num_classes)
    if outside.any():
        where = int(outside.nonzero()[0])
        raise ValueError(
            f"`labels` must lie in 0..{num_classes - 1}, "
            f"but label {where} (counted from 0) is {y[where].item()}."
        )
    return y.to(torch.int64)


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
    return torch.from_numpy(_truncate(max_count * float(imbalance_ratio) ** -rank))


def _truncate(values: NDArray[np.float64]) -> NDArray[np.int64]:
    # 500 · 100^(−1) may be 4.999…: a hair below an integer is that integer.
    return np.floor(values + 1e-9).astype(np.int64)


def __getattr__(name: str) -> Any:
    """Forward what targets has and was called from here before."""
    if name in ("PAPER_TARGETS", "target_counts", "parse_target"):
        return getattr(import_module("tailshift.targets"), name)
    raise AttributeError(f"module 'tailshift.priors' has no attribute {name!r}")
