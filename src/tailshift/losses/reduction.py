"""How a loss turns one value a sample into its result."""

from typing import Literal, TypeAlias, get_args

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
