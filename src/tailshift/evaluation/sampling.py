"""Test sets for a target: all subsets with its counts, one of them, or re-weighting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tailshift.checks import as_tensor, check_counts
from tailshift.priors import (
    VectorLike,
    as_prior,
    check_labels,
    counts_from_labels,
    from_counts,
)
from tailshift.targets import Target, describe, exact_prior, target_counts

Sampling: TypeAlias = Literal["expected", "first", "random", "reweighted"]
"""``"expected"``: the expectation over all subsets with :math:`n_c` samples of each
class c, the paper's counts; no sample is discarded.
``"first"``: one such subset, the first :math:`n_c` samples of each class in file order.
``"random"``: several such subsets, drawn at random.
``"reweighted"``: all samples, weighted by :math:`p_t(y)` over the share of their class;
:math:`p_t` is not rounded to whole samples."""

USES_ALL_SAMPLES = ("expected", "reweighted")
"""The ways that discard no sample and weight them by class."""


def default_sampling(labels: Tensor) -> Sampling:
    """Return the way that suits a test set: the expectation if classes are balanced.

    Subsets with the paper's counts start from the smallest class. If the classes that
    occur differ in size, such a subset would be small, so samples are re-weighted.

    Args:
        labels: :math:`y` of the test set, shape (N,).

    Example:
        >>> default_sampling(torch.tensor([0, 2, 2, 0]))
        'expected'
        >>> default_sampling(torch.tensor([0, 2, 2, 2]))
        'reweighted'
    """
    n = labels.bincount()
    n = n[n > 0]
    return "expected" if n.min() == n.max() else "reweighted"


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
    counts: Tensor | None = None
    """:math:`n_c` of the subsets that the expectation is over, shape (C,); None if the
    test set is no expectation."""


def draw_test_set(
    target: Target,
    labels: Tensor,
    class_counts: Tensor,
    *,
    sampling: Sampling = "expected",
    repeats: int = 10,
    seed: int = 0,
    class_names: Sequence[str] = (),
) -> TestSet:
    r"""Return what samples count on a target.

    For ``"first"`` and ``"random"`` a sample counts 1 or 0, and
    :math:`p_t(c) = n_c / \sum_j n_j` with the counts :math:`n_c` of
    :func:`~tailshift.targets.target_counts`. For ``"expected"`` sample :math:`i` counts
    :math:`n_{y_i} / M_{y_i}`, with :math:`M_c` the test samples of class c: the share
    of the subsets with these counts that contain the sample. A weighted mean, such as
    accuracy, is then exactly the mean over all these subsets. For ``"reweighted"`` the
    sample counts in proportion to :math:`p_t(y_i) / M_{y_i}`, and :math:`p_t` is not
    rounded to whole samples.

    Args:
        target: Name, file or counts.
        labels: :math:`y` of the test set, shape (N,).
        class_counts: Training images of each class, shape (C,).
        sampling: One of the four ways.
        repeats: :math:`R`, how many random subsets; the other ways have one.
        seed: Seed for the random subsets.
        class_names: One per class, for targets and files that name classes.

    Example:
        >>> labels, counts = torch.tensor([0, 1, 1, 0]), torch.tensor([9, 1])
        >>> draw_test_set("forward:2", labels, counts).weights
        tensor([[1.0000, 0.5000, 0.5000, 1.0000]])
        >>> draw_test_set("forward:2", labels, counts, sampling="first").weights
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
    if sampling == "expected":
        check_available(counts, available)
        weights = (counts / available.clamp(min=1))[labels]
        p_t = from_counts(counts)
        return TestSet(describe(target), p_t, weights.float()[None], counts)
    if sampling == "first":
        drawings = [shifted_subset(labels, counts)]
    else:
        generator = torch.Generator().manual_seed(seed)
        drawings = [random_subset(labels, counts, generator) for _ in range(repeats)]
    weights = torch.zeros(len(drawings), len(labels))
    for row, drawn in zip(weights, drawings, strict=True):
        row[drawn] = 1
    return TestSet(describe(target), from_counts(counts), weights)


def subset_deviation(correct: Tensor, labels: Tensor, counts: VectorLike) -> float:
    r"""Return the standard deviation of accuracy over all subsets with some counts.

    Use this to see how much of a difference is the choice of test samples.

    .. math:: \frac{1}{N} \sqrt{\sum_c n_c\, a_c (1 - a_c) \frac{M_c - n_c}{M_c - 1}}

    It is exact: the number of correct samples of class c in a subset has a
    hypergeometric distribution, with :math:`a_c` the accuracy on the :math:`M_c`
    samples of the class and :math:`N = \sum_c n_c`.

    Args:
        correct: Whether each prediction is correct, shape (N,).
        labels: :math:`y` of all samples of each class, shape (N,).
        counts: :math:`n_c`, shape (C,).

    Example:
        >>> correct, labels = torch.tensor([True, False]), torch.tensor([0, 0])
        >>> subset_deviation(correct, labels, [1])  # 0 or 1
        0.5
    """
    n = check_counts(counts, name="counts").double()  # (C,)
    available, accuracy = _class_accuracies(correct, labels, len(n))
    check_available(n, available)
    left = (available - n) / (available - 1).clamp(min=1)
    variance = (n * accuracy * (1 - accuracy) * left).sum()
    return float(variance.sqrt() / n.sum())


def class_weighted_error(correct: Tensor, labels: Tensor, prior: VectorLike) -> float:
    r"""Return the standard error of :math:`\sum_c p_t(c)\, a_c` over test samples.

    Use this to see how far an accuracy that uses all samples can be from the accuracy
    on new samples of the same classes.

    .. math:: \sqrt{\sum_c p_t(c)^2 \frac{a_c (1 - a_c)}{M_c - 1}}

    :math:`a_c` is the accuracy on the :math:`M_c` samples of class c. A class with one
    sample adds nothing, so with many of them the error is too small.

    Args:
        correct: Whether each prediction is correct, shape (N,).
        labels: :math:`y`, shape (N,).
        prior: :math:`p_t`, shape (C,).

    Example:
        >>> correct, labels = torch.tensor([1, 0, 1, 0, 1]) > 0, torch.zeros(5).long()
        >>> round(class_weighted_error(correct, labels, [1.0]), 4)
        0.2449
    """
    p_t = as_prior(prior, name="prior")  # (C,)
    available, accuracy = _class_accuracies(correct, labels, len(p_t))
    variance = accuracy * (1 - accuracy) / (available - 1).clamp(min=1)
    return float((p_t.square() * variance).sum().sqrt())


def _class_accuracies(
    correct: Tensor, labels: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return samples and accuracy of each class, float64; 0 for one without samples."""
    available = torch.bincount(labels, minlength=num_classes).double()
    hits = torch.bincount(labels, correct.double(), minlength=num_classes)
    return available, hits / available.clamp(min=1)


def check_available(counts: Tensor, available: Tensor) -> None:
    """Reject counts beyond the samples that a class has."""
    if (counts > available).any():
        c = int((counts > available).nonzero()[0])
        raise ValueError(
            f"`counts` asks for {int(counts[c])} samples of class {c}, "
            f"but `labels` has {int(available[c])}."
        )


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
    check_available(n, available)
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
    """Reject a way that is not known, and fewer random subsets than one."""
    if sampling not in get_args(Sampling):
        raise ValueError(
            f"`sampling` must be one of {', '.join(get_args(Sampling))}, "
            f"but is {sampling!r}."
        )
    if repeats < 1:
        raise ValueError(f"`repeats` must be at least 1, but is {repeats}.")
