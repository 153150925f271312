"""Vectors over the classes that losses take beside a prior: counts and weights.

Their values are checked on the CPU only: reading them from another device would make
the host wait.
"""

import torch
from torch import Tensor

from tailshift.losses.batch import check_num_classes
from tailshift.priors import VectorLike, as_vector


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
        mend = "Drop them or give them samples."
        if len(empty) == 1:
            mend = "Drop it or give it a sample."
        raise ValueError(
            f"`class_counts` must be positive for every class, but is 0 for "
            f"{_name_classes(empty)} ({len(n)} classes). {mend}"
        )
    return n


def as_weights(class_weights: VectorLike) -> Tensor:
    """Return class weights as checked float64, shape (C,)."""
    w = _as_floats(class_weights, "class_weights")
    check_weights(w)
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


def check_weights(class_weights: Tensor) -> None:
    """Refuse weights below 0 or not finite, on the CPU."""
    if class_weights.device.type == "cpu":
        wrong = ~((class_weights >= 0) & class_weights.isfinite())
        _refuse("class_weights", class_weights, wrong, "finite and not negative")


def weigh(losses: Tensor, labels: Tensor, class_weights: Tensor | None) -> Tensor:
    r"""Return :math:`w_{y_i} \ell_i`, shape (N,)."""
    if class_weights is None:
        return losses
    return losses * class_weights.index_select(0, labels)


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
