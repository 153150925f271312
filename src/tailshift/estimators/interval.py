"""Bootstrap intervals: the estimate again, on samples drawn anew."""

from collections.abc import Callable

import torch
from torch import Tensor

LEVEL = 0.95
NUM_REPLICATES = 200
COLUMNS = 50  # replicates computed side by side
ROWS = 2**16  # weights drawn at a time


def bootstrap_interval(
    replicate: Callable[[Tensor, Tensor], Tensor],
    *,
    num_samples: int,
    num_held_out: int,
    level: float = LEVEL,
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
) -> Tensor:
    """Return percentile intervals, lower and upper, shape (2, C).

    Every sample, unlabelled and held-out, counts a Poisson(1) number of times in a
    replicate, which is drawing with replacement without a fixed total.

    Args:
        replicate: Takes sample weights (N, B) and held-out weights (n, B), returns
            estimates (C, B).
        num_samples: N.
        num_held_out: n.
        level: Share of replicates inside.
        num_replicates: How many.
        seed: Of the weights.

    Example:
        >>> x = torch.arange(100.0)
        >>> bootstrap_interval(
        ...     lambda v, _: (x[:, None] * v).sum(0, keepdim=True) / v.sum(0),
        ...     num_samples=100,
        ...     num_held_out=1,
        ... ).squeeze()
        tensor([44.7400, 54.1095])
    """
    generator = torch.Generator().manual_seed(seed)
    estimates = []
    for start in range(0, num_replicates, COLUMNS):
        columns = min(COLUMNS, num_replicates - start)
        weights = poisson_weights(num_samples, columns, generator)
        held_out = poisson_weights(num_held_out, columns, generator)
        estimates.append(replicate(weights, held_out))
    tail = (1 - level) / 2
    values = torch.cat(estimates, dim=1)  # (C, replicates)
    levels = torch.tensor([tail, 1 - tail], dtype=values.dtype)
    return torch.quantile(values, levels, dim=1)


def poisson_weights(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return Poisson(1) counts (rows, columns) in a byte each, no column all 0."""
    # Drawn in parts: torch.poisson needs its rates, as wide as float32, in memory.
    parts = [
        torch.poisson(torch.ones(min(ROWS, rows - start), columns), generator=generator)
        for start in range(0, rows, ROWS)
    ]
    weights = torch.cat([part.to(torch.uint8) for part in parts])
    weights[0, weights.sum(dim=0) == 0] = 1
    return weights
