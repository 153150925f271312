"""What each sample scores, and the proper scores: Brier, negative log-likelihood."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from tailshift.checks import ArrayLike, check_weights, weighted_mean
from tailshift.metrics.accuracy import check_scores

CHUNK = 1 << 19  # scores held at a time: two megabytes stay in the cache


@dataclass(frozen=True)
class SampleScores:
    """One entry a sample; every metric but the classwise ones is a mean of them."""

    predicted: Tensor
    """The class with the highest score, the lowest id among equals, int64, (N,)."""
    confidence: Tensor
    """The highest probability, as wide as it came, float32 at least, (N,)."""
    own: Tensor
    """The probability of the label, likewise, (N,)."""
    nll: Tensor
    """−log of that, from the logits if they are given, float64, (N,)."""
    brier: Tensor
    """Squared distance of the probabilities to the label's one-hot, float64, (N,)."""

    @staticmethod
    def concatenate(parts: list["SampleScores"]) -> "SampleScores":
        """Return the scores of all parts, in their order."""
        names = [field.name for field in fields(SampleScores)]
        return SampleScores(
            **{
                name: torch.cat([getattr(part, name) for part in parts])
                for name in names
            }
        )


def score_chunk(
    scores: Tensor, labels: Tensor, *, is_probs: bool = False
) -> tuple[SampleScores, Tensor]:
    """Return the samples' scores and their probabilities, shape (n, C).

    Args:
        scores: Logits or probabilities of a few samples, float32 or float64, (n, C).
        labels: :math:`y`, shape (n,).
        is_probs: Whether the scores are probabilities.
    """
    y = labels[:, None]
    predicted = first_argmax(scores)
    p = scores if is_probs else scores.softmax(dim=1)  # (n, C)
    confidence = p.gather(1, predicted[:, None])[:, 0]
    own = p.gather(1, y)[:, 0]
    if is_probs:
        nll = -own.double().log()
    else:
        # log Σ e^f = max f − log max p: no second pass, and no log of a p that is 0.
        answer, true = (scores.gather(1, c)[:, 0] for c in (predicted[:, None], y))
        nll = (answer.double() - true.double()) - confidence.double().log()
    squares, own_p = (p * p).sum(dim=1).double(), own.double()
    brier = (squares - own_p**2).clamp(min=0) + (1 - own_p) ** 2
    return SampleScores(predicted, confidence, own, nll, brier), p


def score_samples(
    logits: ArrayLike | None, labels: ArrayLike | None, probs: ArrayLike | None
) -> tuple[SampleScores, Tensor]:
    """Return all samples' scores and their labels, from checked logits or probs."""
    scores, y = check_scores(logits, labels, probs)
    chunks = score_chunks(scores, y, is_probs=probs is not None)
    return SampleScores.concatenate([part for _, part, _ in chunks]), y


def score_chunks(
    scores: Tensor, labels: Tensor, *, is_probs: bool = False
) -> Iterator[tuple[slice, SampleScores, Tensor]]:
    """Yield which rows a chunk holds, their scores and their probabilities (n, C)."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    for rows in row_slices(*scores.shape):
        part, p = score_chunk(scores[rows].to(wide), labels[rows], is_probs=is_probs)
        yield rows, part, p


def row_slices(num_samples: int, num_classes: int) -> Iterator[slice]:
    """Yield slices of so many rows as make up a chunk."""
    size = max(1, CHUNK // num_classes)
    for start in range(0, num_samples, size):
        yield slice(start, min(start + size, num_samples))


def first_argmax(scores: Tensor) -> Tensor:
    """Return the lowest index of the highest entry of each row, int64, shape (n,)."""
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.argmax(scores.numpy(), axis=1))  # vectorised
    return scores.argmax(dim=1)


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
