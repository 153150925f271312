"""Accuracy: over all samples, over groups of classes, among the top k, macro-F1.

Each metric takes ``logits`` or ``probs``, by name, and returns a fraction in [0, 1];
higher is better.
"""

import torch
from torch import Tensor

from tailshift import checks
from tailshift.priors import VectorLike


def class_groups(
    class_counts: VectorLike, *, many: int = 100, few: int = 20
) -> dict[str, Tensor]:
    """Return the class ids of the groups ``"many"``, ``"medium"`` and ``"few"``.

    Args:
        class_counts: :math:`n_y`, training images of each class, shape (C,).
        many: A class with more images than this has many.
        few: A class with fewer images than this has few.

    Example:
        >>> class_groups([500, 100, 20, 19])
        {'many': tensor([0]), 'medium': tensor([1, 2]), 'few': tensor([3])}
    """
    if many < few:
        raise ValueError(f"`many` must be at least `few`, but is {many} against {few}.")
    n = checks.check_counts(class_counts)  # (C,)
    is_many, is_few = n > many, n < few
    members = {"many": is_many, "medium": ~is_many & ~is_few, "few": is_few}
    return {name: member.nonzero().flatten() for name, member in members.items()}


def accuracy(
    logits: checks.ArrayLike | None = None,
    labels: checks.ArrayLike | None = None,
    *,
    probs: checks.ArrayLike | None = None,
    sample_weights: checks.ArrayLike | None = None,
) -> float:
    """Return the share of samples whose highest score is their label's.

    Among equal scores the lowest class id counts as the answer.

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        sample_weights: What each sample counts, shape (N,); all the same by default.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> accuracy(logits, torch.tensor([0, 1]))
        0.5
    """
    scores, y = check_scores(logits, labels, probs)
    return share(scores.argmax(dim=1) == y, checks.check_weights(sample_weights, y))


def top_k_accuracy(
    logits: checks.ArrayLike | None = None,
    labels: checks.ArrayLike | None = None,
    *,
    probs: checks.ArrayLike | None = None,
    k: int = 5,
) -> float:
    """Return the share of samples whose label is among the k highest scores.

    Equal scores are ranked by class id, the lowest first, so that k = 1 is
    :func:`accuracy`.

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        k: How many answers a sample has, in 1..C.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
        >>> top_k_accuracy(logits, torch.tensor([1, 1]), k=2)
        0.5
    """
    scores, y = check_scores(logits, labels, probs)
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(
            f"`k` must lie in 1..{scores.shape[1]}, the number of classes, but is {k}."
        )
    return share(label_ranks(scores, y) < k, checks.check_weights(None, y))


def macro_f1(
    logits: checks.ArrayLike | None = None,
    labels: checks.ArrayLike | None = None,
    *,
    probs: checks.ArrayLike | None = None,
) -> float:
    r"""Return the F1 score averaged over classes.

    .. math:: F_1(c) = \frac{2\, TP_c}{2\, TP_c + FP_c + FN_c}

    The mean runs over the classes that occur among the labels or the answers, as in
    scikit-learn's ``f1_score(average="macro")``.

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
        >>> macro_f1(logits, torch.tensor([0, 1, 1]))  # 2/3 for both classes
        0.6666666666666666
    """
    scores, y = check_scores(logits, labels, probs)
    return mean_f1(scores.argmax(dim=1), y, scores.shape[1])


def group_accuracy(
    logits: checks.ArrayLike | None = None,
    labels: checks.ArrayLike | None = None,
    class_counts: VectorLike | None = None,
    *,
    probs: checks.ArrayLike | None = None,
    sample_weights: checks.ArrayLike | None = None,
) -> dict[str, float]:
    """Return the accuracy over the samples of many-, medium- and few-shot classes.

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        class_counts: :math:`n_y`, training images of each class, shape (C,), for
            :func:`~tailshift.metrics.accuracy.class_groups`: more than 100 are many,
            fewer than 20 are few.
        probs: Probabilities, shape (N, C), instead of logits.
        sample_weights: What each sample counts, shape (N,); all the same by default.

    Returns:
        ``"many"``, ``"medium"``, ``"few"``: a fraction, or NaN without such samples.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
        >>> group_accuracy(logits, torch.tensor([0, 1, 1]), class_counts=[101, 19])
        {'many': 1.0, 'medium': nan, 'few': 0.5}
    """
    scores, y = check_scores(logits, labels, probs)
    if class_counts is None:
        raise TypeError("`class_counts` must be given, but is missing.")
    n = checks.check_counts(class_counts, num_classes=scores.shape[1])
    w = checks.check_weights(sample_weights, y)
    return group_shares(scores.argmax(dim=1) == y, y, n, w)


def check_scores(
    logits: checks.ArrayLike | None,
    labels: checks.ArrayLike | None,
    probs: checks.ArrayLike | None,
) -> tuple[Tensor, Tensor]:
    """Return the given one of logits and probs (N, C), and the labels (N,), checked."""
    if (logits is None) == (probs is None):
        came = "neither" if logits is None else "both"
        raise TypeError(f"Give either `logits` or `probs`, but {came} came.")
    if labels is None:
        raise TypeError("`labels` must be given, but is missing.")
    if probs is not None:
        scores = checks.check_probs(probs)
        return scores, checks.check_sample_labels(labels, scores, name="probs")
    assert logits is not None
    scores = checks.check_logits(logits)
    return scores, checks.check_sample_labels(labels, scores)


def label_ranks(scores: Tensor, labels: Tensor) -> Tensor:
    """Return how many classes each sample ranks above its label, int64, shape (N,).

    Among equal scores the lower class id ranks above.
    """
    own = scores.gather(1, labels[:, None])  # (N, 1)
    # Cast before the sum: torch adds up truth values slowly.
    ranks = (scores > own).float().sum(dim=1).long()
    tied = (scores == own).float().sum(dim=1) > 1
    if tied.any():
        is_lower = (
            torch.arange(scores.shape[1], device=labels.device) < labels[tied, None]
        )
        ranks[tied] += ((scores[tied] == own[tied]) & is_lower).sum(dim=1)
    return ranks


def mean_f1(
    predicted: Tensor, labels: Tensor, num_classes: int, weights: Tensor | None = None
) -> float:
    """Return :func:`macro_f1` of predicted class ids, shape (N,)."""
    w = torch.ones_like(labels, dtype=torch.float64) if weights is None else weights
    right = predicted == labels
    hits = torch.bincount(labels[right], w[right], num_classes)
    sizes = torch.bincount(labels, w, num_classes)
    sizes += torch.bincount(predicted, w, num_classes)  # 2 TP + FP + FN
    occurs = sizes > 0
    return (2 * hits[occurs] / sizes[occurs]).mean().item()


def group_shares(
    correct: Tensor,
    labels: Tensor,
    class_counts: Tensor,
    weights: Tensor | None = None,
) -> dict[str, float]:
    """Return the share of correct samples in each group of classes; NaN for none."""
    w = torch.ones_like(labels, dtype=torch.float64) if weights is None else weights
    group_of = torch.empty(len(class_counts), dtype=torch.int64)
    groups = class_groups(class_counts)
    for index, classes in enumerate(groups.values()):
        group_of[classes] = index
    group = group_of.to(labels.device)[labels]  # (N,)
    weight = torch.bincount(group, w, len(groups))
    right = torch.bincount(group, w * correct, len(groups))
    return dict(zip(groups, (right / weight).tolist(), strict=True))


def share(statement: Tensor, weights: Tensor) -> float:
    """Return the part of the weight that lies on true entries."""
    return ((weights * statement).sum() / weights.sum()).item()
