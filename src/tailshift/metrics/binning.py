"""Bins of probabilities: equal in width, or equal in the samples they hold."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

Binning: TypeAlias = Literal["equal_width", "equal_mass"]
"""How bins are laid: at m/M, or so that each holds the same weight of samples."""

NUM_BINS = 20
"""Bins where nothing else is said: those of [hong2021]."""


def check_binning(num_bins: int, binning: str) -> None:
    """Refuse fewer bins than one, and a layout that is not known."""
    if isinstance(num_bins, bool) or not isinstance(num_bins, int) or num_bins < 1:
        raise ValueError(f"`num_bins` must be an integer >= 1, but is {num_bins!r}.")
    if binning not in get_args(Binning):
        raise ValueError(
            f"`binning` must be one of {', '.join(get_args(Binning))}, "
            f"but is {binning!r}."
        )


def equal_width_edges(num_bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the edges m/M, rounded to the probabilities' dtype, shape (M + 1,).

    Example:
        >>> equal_width_edges(4)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    return (torch.arange(num_bins + 1, dtype=torch.float64) / num_bins).to(dtype)


def equal_mass_edges(p: Tensor, weights: Tensor, num_bins: int) -> Tensor:
    r"""Return edges between which the samples weigh the same, shape (…, M + 1).

    Edge m is the smallest value :math:`v` with at least m/M of the weight at
    :math:`p \leq v`, the first is 0 and the last 1. Equal values share a bin, so that
    bins may hold more than their part, or nothing.

    Args:
        p: Probabilities, shape (…, N).
        weights: What each sample counts, float64, shape (N,).
        num_bins: :math:`M`.

    Example:
        >>> p = torch.tensor([0.1, 0.9, 0.2, 0.3])
        >>> equal_mass_edges(p, torch.ones(4, dtype=torch.float64), 2)
        tensor([0.0000, 0.2000, 1.0000])
    """
    ordered, order = p.sort(dim=-1)
    mass = weights[order].cumsum(dim=-1)  # (…, N)
    wanted = torch.arange(1, num_bins, dtype=torch.float64) * weights.sum() / num_bins
    wanted = wanted.to(mass.device).expand(*mass.shape[:-1], num_bins - 1).contiguous()
    at = torch.searchsorted(mass, wanted).clamp(max=p.shape[-1] - 1)
    inner = ordered.gather(-1, at)
    zero = torch.zeros_like(ordered[..., :1])
    return torch.cat([zero, inner, zero + 1], dim=-1)


def bin_of(p: Tensor, edges: Tensor) -> Tensor:
    """Return the index m − 1 of the bin (edge m−1, edge m] of each value, int64.

    What lies at the lowest edge, or below, belongs to the first bin.

    Example:
        >>> bin_of(torch.tensor([0.0, 0.25, 0.26, 1.0]), equal_width_edges(4).float())
        tensor([0, 0, 1, 3])
    """
    inner = edges[..., 1:-1].to(p.device).contiguous()
    return torch.searchsorted(inner, p.contiguous())
