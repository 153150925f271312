"""Weights of samples: what each counts in a mean."""

import torch
from torch import Tensor

from tailshift.predictions import ArrayLike, as_tensor


def check_weights(sample_weights: ArrayLike | None, labels: Tensor) -> Tensor:
    """Return what each sample counts, float64, shape (N,); 1 where nothing is given."""
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
