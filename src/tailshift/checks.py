"""Checks of arrays from outside: logits, probabilities, labels, counts, weights."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.priors import VectorLike, check_labels
from tailshift.priors import as_tensor as as_tensor  # it is asked for here as well

ArrayLike: TypeAlias = Tensor | NDArray[Any]

_PROBS_TOLERANCE = 1e-3  # a row of 8142 half-precision probabilities stays within it


def check_logits(logits: ArrayLike, *, name: str = "logits") -> Tensor:
    """Return ``logits`` as a tensor (N, C) without NaN, +inf or a row of only −inf.

    Probabilities are refused: a softmax of them is close to uniform, whatever they say.

    Example:
        >>> check_logits(torch.tensor([[0.0, 1.0], [0.0, torch.nan]]))
        Traceback (most recent call last):
        ...
        ValueError: `logits` must be finite or −inf, but row 1 (from 0) holds nan.
    """
    f = _check_scores(logits, name)
    refuse_probs(f, name)
    return f


def refuse_probs(logits: Tensor, name: str = "logits") -> None:
    """Refuse logits (N, C) all in [0, 1] whose rows all sum to 1: they are no logits.

    A single row, a single class, or rows of a 1 and zeros alone are not judged.
    """
    if min(logits.shape) < 2 or not _are_probs(logits[:2]):  # most end here
        return
    if _are_probs(logits) and ((logits > 0) & (logits < 1)).any():
        raise ValueError(
            f"`{name}` must be logits, but every row lies in [0, 1] and sums to 1, as "
            "probabilities do. Take their logarithm, or give them as `probs` "
            "(Predictions.from_probs)."
        )


def _are_probs(p: Tensor) -> bool:
    smallest, largest = p.aminmax()
    if not (smallest >= 0 and largest <= 1):
        return False
    sums = p.sum(dim=1, dtype=torch.promote_types(p.dtype, torch.float32))
    return bool(((sums - 1).abs() <= _PROBS_TOLERANCE).all())


def _check_scores(scores: ArrayLike, name: str) -> Tensor:
    f = as_tensor(scores, name)
    if f.ndim != 2 or f.numel() == 0:
        raise ValueError(
            f"`{name}` must have shape (N, C) with at least one row and one class, "
            f"but has shape {tuple(f.shape)}."
        )
    if not f.is_floating_point():
        raise TypeError(f"`{name}` must be floating point, but is {f.dtype}.")
    if f.element_size() < 2:  # nothing can be computed with eight bits
        raise TypeError(f"`{name}` must have 16 bits or more, but is {f.dtype}.")
    largest = f.amax(dim=1)  # (N,): NaN where the row holds one; no copy of the logits
    if largest.isfinite().all():
        return f
    row = int((~largest.isfinite()).nonzero()[0])
    if largest[row] == -torch.inf:
        raise ValueError(
            f"`{name}` must not be −inf for every class, but row {row} (from 0) is."
        )
    raise ValueError(
        f"`{name}` must be finite or −inf, "
        f"but row {row} (from 0) holds {largest[row].item()}."
    )


def check_probs(probs: ArrayLike) -> Tensor:
    """Return ``probs`` as a tensor (N, C) with values in [0, 1] and rows of sum 1.

    Example:
        >>> check_probs(torch.tensor([[0.5, 0.6]]))
        Traceback (most recent call last):
        ...
        ValueError: Rows of `probs` must sum to 1, but row 0 (from 0) sums to 1.1000.
    """
    p = _check_scores(probs, "probs")
    smallest, largest = p.aminmax(dim=1)
    if smallest.min() < 0 or largest.max() > 1:
        outside = smallest.min() if smallest.min() < 0 else largest.max()
        raise ValueError(
            f"`probs` must lie in [0, 1], but holds {outside.item():g}. "
            "Are these logits?"
        )
    sums = p.sum(dim=1, dtype=torch.promote_types(p.dtype, torch.float32))
    wrong = (sums - 1).abs() > _PROBS_TOLERANCE
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            "Rows of `probs` must sum to 1, "
            f"but row {row} (from 0) sums to {sums[row].item():.4f}."
        )
    return p


def check_sample_labels(labels: Any, scores: Tensor, name: str = "logits") -> Tensor:
    """Return ``labels`` as int64 on the scores' device, one in 0..C−1 for each row."""
    y = as_tensor(labels, "labels").to(scores.device)
    if not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool):
        y = y.to(torch.int64)
    y = check_labels(y, scores.shape[1])
    if len(y) != len(scores):
        raise ValueError(
            f"`labels` has {len(y)} entries but `{name}` has {len(scores)} rows."
        )
    return y


def check_counts(
    counts: VectorLike, *, name: str = "class_counts", num_classes: int | None = None
) -> Tensor:
    """Return ``counts`` as an int64 CPU tensor (C,): none negative, not all zero."""
    n = as_tensor(counts, name).cpu()
    if n.ndim != 1 or n.numel() == 0:
        raise ValueError(
            f"`{name}` must be a vector with one entry a class, "
            f"but has shape {tuple(n.shape)}."
        )
    if n.is_floating_point() or n.is_complex() or n.dtype == torch.bool:
        raise TypeError(f"`{name}` must be integers, but are {n.dtype}.")
    n = n.to(torch.int64)
    if num_classes is not None and len(n) != num_classes:
        raise ValueError(
            f"`{name}` has {len(n)} entries but there are {num_classes} classes."
        )
    if (n < 0).any():
        where = int(n.argmin())
        raise ValueError(
            f"`{name}` must not be negative, "
            f"but is {n[where].item()} for class {where}."
        )
    if not n.any():
        raise ValueError(f"`{name}` must not be 0 for every class.")
    return n


def check_names(class_names: Iterable[str], num_classes: int) -> tuple[str, ...]:
    """Return one name per class; ``"class 0"`` … if there are none."""
    names = [] if class_names is None else class_names
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        return tuple(f"class {c}" for c in range(num_classes))
    if not all(isinstance(name, str) for name in names):
        raise TypeError("`class_names` must be strings, one per class.")
    if len(names) != num_classes:
        raise ValueError(
            f"`class_names` has {len(names)} names but `logits` has {num_classes} "
            "classes."
        )
    return tuple(str(name) for name in names)


def check_weights(sample_weights: ArrayLike | None, labels: Tensor) -> Tensor:
    """Return what each sample counts, float64, shape (N,); 1 if nothing is given."""
    if sample_weights is None:
        return torch.ones(len(labels), dtype=torch.float64, device=labels.device)
    w = as_tensor(sample_weights, "sample_weights").to(labels.device)
    if w.shape != labels.shape:
        raise ValueError(
            f"`sample_weights` must have one entry a sample, shape ({len(labels)},), "
            f"but has shape {tuple(w.shape)}."
        )
    if w.is_complex():
        raise TypeError(f"`sample_weights` must be real, but are {w.dtype}.")
    w = w.double()
    wrong = ~(w >= 0) | ~w.isfinite()
    if wrong.any():
        where = int(wrong.nonzero()[0])
        raise ValueError(
            "`sample_weights` must be finite and not negative, "
            f"but weight {where} (counted from 0) is {w[where].item():g}."
        )
    if not w.any():
        raise ValueError("`sample_weights` must not be 0 for every sample.")
    return w


def weighted_mean(values: Tensor, weights: Tensor) -> float:
    """Return the mean by weight; a sample of weight 0 does not count, even if inf."""
    counted = weights > 0
    if not counted.all():
        values, weights = values[counted], weights[counted]
    return ((values.double() * weights).sum() / weights.sum()).item()
