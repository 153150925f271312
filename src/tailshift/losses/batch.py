"""What every loss takes: logits (N, C) and labels (N,), checked without reading them.

Only shapes and dtypes are looked at, so that no check makes the host wait for a device.
"""

import torch
from torch import Tensor


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
    f = check_logits(logits, name=name)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"`labels` must be class indices, but is {labels.dtype}.")
    if labels.shape != logits.shape[:1]:
        raise ValueError(
            f"`labels` must have shape ({len(logits)},), one for each row of `{name}`, "
            f"but has shape {tuple(labels.shape)}."
        )
    return f, labels.long()


def check_logits(logits: Tensor, *, name: str = "logits") -> Tensor:
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
