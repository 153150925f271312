"""Checks that the losses share: of batches, settings, class counts and weights.

Checks look only at shapes and dtypes of logits and labels, so that none makes the host
wait for a device.
"""

import math

import torch
from torch import Tensor

from tailshift.priors import VectorLike, as_vector


def check_batch(
    logits: Tensor, labels: Tensor, *, name: str = "logits"
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`f` in float32 or wider, and :math:`y` as int64.

    Args:
        logits: Shape (N, C).
        labels: Class indices, shape (N,).
        name: What the loss calls its ``logits``, for error messages.

    Example:
        >>> f, y = check_batch(torch.zeros(2, 3).bfloat16(), torch.tensor([0, 2]))
        >>> f.dtype, y.dtype
        (torch.float32, torch.int64)
    """
    _check_tensor(name, logits)
    _check_tensor("labels", labels)
    f = as_logits(logits, name=name)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"`labels` must be class indices, but is {labels.dtype}.")
    if labels.shape != logits.shape[:1]:
        raise ValueError(
            f"`labels` must have shape ({len(logits)},), one for each row of `{name}`, "
            f"but has shape {tuple(labels.shape)}."
        )
    # Elsewhere than on the CPU, reading them would make the host wait.
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_inside(labels, f.shape[1])
    return f, labels.long()


def _check_inside(labels: Tensor, num_classes: int) -> None:
    lowest, highest = (value.item() for value in labels.aminmax())
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"`labels` must lie in 0..{num_classes - 1}, but "
            f"{lowest if lowest < 0 else highest} is among them."
        )


def as_logits(logits: Tensor, *, name: str = "logits") -> Tensor:
    r"""Return :math:`f`, shape (N, C), in float32 or wider.

    Half-precision logits are widened here, once, so that all sums and exponentials of
    a loss run in float32 under autocast too; their gradient comes back in half.
    """
    _check_tensor(name, logits)
    if not logits.is_floating_point():
        raise TypeError(f"`{name}` must be floating point, but is {logits.dtype}.")
    if logits.ndim != 2:
        raise ValueError(
            f"`{name}` must have shape (N, C), but has shape {tuple(logits.shape)}."
        )
    if logits.numel() == 0:
        raise ValueError(
            f"`{name}` must hold at least one sample and one class, "
            f"but has shape {tuple(logits.shape)}. Skip an empty batch."
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` must be a torch tensor, but is {type(value).__name__}."
        )


def check_part(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return what :func:`check_batch` does, for a part of a batch that may be empty."""
    if logits.ndim == 2 and logits.shape[0] == 0 and labels.shape == (0,):
        f = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return f, labels.long()
    return check_batch(logits, labels)


def check_num_classes(
    name: str, vector: Tensor, logits: Tensor, *, logits_name: str = "logits"
) -> None:
    """Refuse a ``vector`` that has not one entry for each class of ``logits``."""
    if len(vector) != logits.shape[1]:
        raise ValueError(
            f"`{name}` has {len(vector)} entries "
            f"but `{logits_name}` has {logits.shape[1]} classes."
        )


def check_not_negative(name: str, value: float) -> None:
    """Refuse a setting below 0, or one that is not finite.

    Example:
        >>> check_not_negative("gamma", -1.0)
        Traceback (most recent call last):
        ...
        ValueError: `gamma` must be finite and not negative, but is -1.0.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"`{name}` must be finite and not negative, but is {value}.")


def check_positive(name: str, value: float) -> None:
    """Refuse a setting that is not above 0, or not finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be finite and positive, but is {value}.")


def check_share(name: str, value: float) -> None:
    """Refuse a setting outside of 0..1."""
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must lie in [0, 1], but is {value}.")


def as_class_counts(class_counts: VectorLike, *, positive: bool = True) -> Tensor:
    """Return counts as float64 (float32 on a device without it), shape (C,).

    Args:
        class_counts: Training samples of each class, shape (C,).
        positive: Refuse a class without samples.

    Example:
        >>> as_class_counts([500, 0, 20, 0])
        Traceback (most recent call last):
        ...
        ValueError: `class_counts` must be positive for every class, but is 0 for \
classes 1 and 3 (4 classes). Drop them or give them samples.
    """
    n = _as_floats(class_counts, "class_counts")
    if n.device.type != "cpu":
        return n
    _refuse("class_counts", n, ~((n >= 0) & n.isfinite()), "finite and not negative")
    if positive and (n == 0).any():
        empty = (n == 0).nonzero().flatten().tolist()
        remedy = "Drop them or give them samples."
        if len(empty) == 1:
            remedy = "Drop it or give it a sample."
        raise ValueError(
            f"`class_counts` must be positive for every class, but is 0 for "
            f"{_name_classes(empty)} ({len(n)} classes). {remedy}"
        )
    return n


def as_weights(class_weights: VectorLike) -> Tensor:
    """Return class weights as checked float64, shape (C,)."""
    w = _as_floats(class_weights, "class_weights")
    check_class_weights(w)
    return w


def weights_for(
    logits: Tensor, class_weights: VectorLike | None, *, logits_name: str = "logits"
) -> Tensor | None:
    """Return checked weights in the dtype and on the device of widened ``logits``."""
    if class_weights is None:
        return None
    w = as_weights(class_weights)
    check_num_classes("class_weights", w, logits, logits_name=logits_name)
    return w.to(logits)


def check_class_weights(class_weights: Tensor) -> None:
    """Refuse weights below 0 or not finite, on the CPU."""
    if class_weights.device.type == "cpu":
        wrong = ~((class_weights >= 0) & class_weights.isfinite())
        _refuse("class_weights", class_weights, wrong, "finite and not negative")


def _as_floats(values: VectorLike, name: str) -> Tensor:
    vector = as_vector(values, name).detach()
    return vector.to(torch.float32 if vector.device.type == "mps" else torch.float64)


def _refuse(name: str, values: Tensor, wrong: Tensor, rule: str) -> None:
    if wrong.any():
        where = int(wrong.int().argmax())
        raise ValueError(
            f"`{name}` must be {rule}, but is {values[where].item():g} "
            f"for class {where}."
        )


def _name_classes(indices: list[int], most: int = 8) -> str:
    if len(indices) == 1:
        return f"class {indices[0]}"
    if len(indices) > most:
        shown = ", ".join(map(str, indices[:most]))
        return f"classes {shown} and {len(indices) - most} more"
    return f"classes {', '.join(map(str, indices[:-1]))} and {indices[-1]}"
