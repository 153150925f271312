"""Proper scoring rules: Brier score and negative log-likelihood."""

from tailshift.metrics.sample_scores import score_samples
from tailshift.metrics.weights import check_weights, weighted_mean
from tailshift.predictions import ArrayLike


def brier_score(
    logits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    sample_weights: ArrayLike | None = None,
) -> float:
    r"""Return the mean squared distance of the probabilities to the one-hot labels.

    .. math:: \frac{1}{N} \sum_{i=1}^N \sum_{c=1}^C (p_{ic} - [y_i = c])^2

    [hong2021] Eq. (30), whose text omits 1/N; lower is better, in [0, 2].

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        sample_weights: What each sample counts, shape (N,); all the same by default.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
        >>> brier_score(probs=probs, labels=torch.tensor([0, 1]))  # (0.125 + 0.5) / 2
        0.3125
    """
    scores, y = score_samples(logits, labels, probs)
    return weighted_mean(scores.brier, check_weights(sample_weights, y))


def negative_log_likelihood(
    logits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    sample_weights: ArrayLike | None = None,
) -> float:
    r"""Return the mean of −log of the label's probability.

    .. math:: -\frac{1}{N} \sum_{i=1}^N \log p(y_i | x_i)

    [hong2021] Eq. (31), whose text omits 1/N; lower is better, in [0, ∞]. A label of
    probability 0 makes it infinite. From logits it is computed without rounding such
    probabilities to 0.

    Args:
        logits: :math:`f`, shape (N, C).
        labels: :math:`y`, class indices, shape (N,).
        probs: Probabilities, shape (N, C), instead of logits.
        sample_weights: What each sample counts, shape (N,); all the same by default.

    Example:
        >>> import torch
        >>> negative_log_likelihood(torch.tensor([[0.0, 200.0]]), torch.tensor([0]))
        200.0
    """
    scores, y = score_samples(logits, labels, probs)
    return weighted_mean(scores.nll, check_weights(sample_weights, y))
