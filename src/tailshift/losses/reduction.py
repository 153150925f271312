"""How a loss turns one value a sample into its result."""

from typing import Literal, TypeAlias, get_args

from torch import Tensor

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def check_reduction(reduction: str) -> None:
    """Refuse a ``reduction`` that no loss knows.

    Example:
        >>> check_reduction("average")
        Traceback (most recent call last):
        ...
        ValueError: `reduction` must be 'mean', 'sum' or 'none', but is 'average'.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(
            f"`reduction` must be 'mean', 'sum' or 'none', but is {reduction!r}."
        )


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Return the mean or sum of one value a sample, shape (N,), or the values."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
