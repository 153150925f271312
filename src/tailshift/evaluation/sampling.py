"""Test sets for a target: the first samples, random ones, or all, re-weighted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tailshift.checks import as_tensor, check_counts
from tailshift.priors import VectorLike, check_labels, counts_from_labels, from_counts
from tailshift.targets import Target, describe, exact_prior, target_counts

Sampling: TypeAlias = Literal["first", "random", "reweighted"]
"""``"first"``: the first :math:`n_c` samples of each class in file order, as the paper.
``"random"``: :math:`n_c` of each class at random, several times.
``"reweighted"``: every sample, weighted by :math:`p_t(y)` over its class's share."""


def default_sampling(labels: Tensor) -> Sampling:
    """Return the way that suits a test set: the paper's, if its classes are balanced.

    Thinned test sets start from the smallest class. If the classes that occur differ in
    size, that would leave samples unused, and every sample is re-weighted instead.

    Args:
        labels: :math:`y` of the test set, shape (N,).

    Example:
        >>> default_sampling(torch.tensor([0, 2, 2, 0]))
        'first'
        >>> default_sampling(torch.tensor([0, 2, 2, 2]))
        'reweighted'
    """
    n = labels.bincount()
    n = n[n > 0]
    return "first" if n.min() == n.max() else "reweighted"


@dataclass(frozen=True, eq=False)
class TestSet:
    """What each sample counts in the test sets that are drawn to a target."""

    __test__ = False  # pytest, this is no test

    target: str
    """The target's name, as in the records."""
    target_prior: Tensor
    """:math:`p_t`, float64, shape (C,)."""
    weights: Tensor
    """What each sample counts in each drawing, float32, shape (R, N)."""


def draw_test_set(
    target: Target,
    labels: Tensor,
    class_counts: Tensor,
    *,
    sampling: Sampling = "first",
    repeats: int = 10,
    seed: int = 0,
    class_names: Sequence[str] = (),
) -> TestSet:
    r"""Return what samples count on a target.

    For ``"first"`` and ``"random"`` a sample counts 1 or 0, and
    :math:`p_t(c) = n_c / \sum_j n_j` with the counts of
    :func:`~tailshift.targets.target_counts`. For ``"reweighted"`` sample
    :math:`i` counts in proportion to :math:`p_t(y_i) / n_{y_i}`, with :math:`n_c` the
    test samples of class c and :math:`p_t` not rounded to whole samples. A weighted
    mean is then the expectation over random subsets, without their variance.

    Args:
        target: Name, file or counts.
        labels: :math:`y` of the test set, shape (N,).
        class_counts: Training images of each class, shape (C,).
        sampling: One of the three ways.
        repeats: :math:`R`, how many random subsets; the other ways have one.
        seed: Seed for the random subsets.
        class_names: One per class, for targets and files that name classes.

    Example:
        >>> labels, counts = torch.tensor([0, 1, 1, 0]), torch.tensor([9, 1])
        >>> draw_test_set("forward:2", labels, counts).weights
        tensor([[1., 1., 0., 1.]])
        >>> draw_test_set("forward:2", labels, counts, sampling="reweighted").weights
        tensor([[1.3333, 0.6667, 0.6667, 1.3333]])
    """
    check_sampling(sampling, repeats)
    available = counts_from_labels(labels, len(class_counts))
    if sampling == "reweighted":
        p_t = exact_prior(target, class_counts, available, class_names=class_names)
        weights = len(labels) * p_t[labels] / available[labels]
        return TestSet(describe(target), p_t, weights.float()[None])
    counts = target_counts(target, class_counts, available, class_names=class_names)
    if sampling == "first":
        drawings = [shifted_subset(labels, counts)]
    else:
        generator = torch.Generator().manual_seed(seed)
        drawings = [random_subset(labels, counts, generator) for _ in range(repeats)]
    weights = torch.zeros(len(drawings), len(labels))
    for row, drawn in zip(weights, drawings, strict=True):
        row[drawn] = 1
    return TestSet(describe(target), from_counts(counts), weights)


def shifted_subset(labels: VectorLike, counts: VectorLike) -> Tensor:
    """Return the first ``counts[c]`` samples of each class c, in file order.

    Args:
        labels: :math:`y`, class indices, shape (N,).
        counts: Samples to take of each class, shape (C,).

    Returns:
        Their indices, ascending, int64.

    Example:
        >>> shifted_subset([1, 0, 1, 0, 1], counts=[1, 2])
        tensor([0, 1, 2])
    """
    n = check_counts(counts, name="counts")  # (C,)
    y = check_labels(as_tensor(labels, "labels").cpu(), len(n))  # (N,)
    available = torch.bincount(y, minlength=len(n))
    if (n > available).any():
        c = int((n > available).nonzero()[0])
        raise ValueError(
            f"`counts` asks for {n[c].item()} samples of class {c}, "
            f"but `labels` has {available[c].item()}."
        )
    order = y.argsort(stable=True)  # class by class, each in file order
    start = available.cumsum(0) - available  # (C,): where a class begins in `order`
    position = torch.arange(len(y)) - start[y[order]]
    return order[position < n[y[order]]].sort().values


def random_subset(labels: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``counts[c]`` random samples of each class c, their indices ascending.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> random_subset(torch.tensor([0, 1, 0, 1]), torch.tensor([1, 2]), generator)
        tensor([0, 1, 3])
    """
    order = torch.randperm(len(labels), generator=generator)
    return order[shifted_subset(labels[order], counts)].sort().values


def check_sampling(sampling: str, repeats: int = 1) -> None:
    """Refuse a way that is not known, and fewer random subsets than one."""
    if sampling not in get_args(Sampling):
        raise ValueError(
            f"`sampling` must be one of {', '.join(get_args(Sampling))}, "
            f"but is {sampling!r}."
        )
    if repeats < 1:
        raise ValueError(f"`repeats` must be at least 1, but is {repeats}.")
