"""How the losses of the samples become the loss of a batch."""

from typing import Literal, TypeAlias, get_args

from torch import Tensor

Reduction: TypeAlias = Literal["mean", "sum", "none"]
"""How the losses of the samples become the loss."""


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
    """Return the mean or sum of one value per sample, shape (N,), or the values."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def weigh(losses: Tensor, labels: Tensor, class_weights: Tensor | None) -> Tensor:
    r"""Return :math:`w_{y_i} \ell_i`, shape (N,)."""
    if class_weights is None:
        return losses
    return losses * class_weights.index_select(0, labels)
