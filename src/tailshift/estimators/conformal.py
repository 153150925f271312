"""Prediction sets with a chosen coverage under label shift."""

import math
import warnings
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.checks import as_tensor, check_logits
from tailshift.compensation import post_compensate
from tailshift.predictions import Predictions
from tailshift.priors import VectorLike, as_prior, from_counts

By: TypeAlias = Literal["all", "class"]
_Logits = TypeVar("_Logits", Tensor, NDArray[Any])

PREDICTED_SCORE = -1.0  # below all thresholds
UNSEEN = 0.5  # added to counts whose logarithm is taken
MAX_DEVIATION = 3.0  # of held-out counts from the source prior, in standard deviations
SLACK = 1e-9  # relative, for sums of weights that are equal except for rounding


def set_scores(probs: Tensor, predicted: Tensor | None = None) -> Tensor:
    r"""Compute the scores :math:`-\log p`; a set takes classes up to a threshold.

    Args:
        probs: Class probabilities, shape (N, C).
        predicted: Classes to put into every set, by the score −1, shape (N,).

    Example:
        >>> set_scores(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0]))
        tensor([[-1.0000,  1.3863,  1.3863]])
    """
    s = probs.log().neg_()
    if predicted is not None:
        s.scatter_(1, predicted[:, None], PREDICTED_SCORE)
    return s


class ConformalSets:
    r"""Prediction sets that contain the true class with probability ``coverage``.

    Use this where a single predicted class is too uncertain. Class y is in the set of x
    if :math:`-\log p(y|x)` is at most :math:`t_y`, a weighted quantile of the scores
    :math:`s_i` of held-out samples [podkopaev2021]:

    .. math:: t_y = \mathrm{Quantile}\Big(coverage;\;
              \frac{\sum_i w_{y_i} \delta_{s_i} + w_y \delta_\infty}
                   {\sum_i w_{y_i} + w_y}\Big)

    ``by="all"`` gives the smallest sets that cover a share ``coverage`` of the target's
    samples. Posteriors are for the target prior :math:`q`, and :math:`w_y = q_y / p_y`
    with the class shares p of the held-out samples. If classes are missing there, p is
    the source prior, provided that it is known and agrees with their counts. The
    coverage holds for the prior q only; :meth:`expected_coverage` estimates it for
    another prior.

    ``by="class"`` covers that share of *each* class, whatever the target prior is.
    Posteriors are for a uniform prior [ding2025]. A class with enough held-out samples
    (9 for 90 %) gets the quantile of its own scores. Another class c borrows samples
    from classes that are about as frequent in the source:

    .. math:: k_y = \exp\Big(-\tfrac{1}{2} \log_2^2 \frac{p_s(y)}{p_s(c)}\Big), \quad
              w_y = \frac{k_y}{n_y}, \quad
              w_c = \frac{\sum_i w_{y_i}^2}{\max_i k_{y_i} \sum_i w_{y_i}}

    and its threshold is no less than its own empirical quantile. With too few samples
    to borrow it is in every set. Such classes have no guarantee;
    ``classes_without_guarantee_`` names them.

    The predicted class is in every set, so sets cover more than ``coverage`` where it
    alone is right more often. With ``allow_empty`` it can be outside the set too. An
    empty set then marks a sample to review.

    Args:
        coverage: Share of samples whose set contains the true class.
        by: ``"all"`` or ``"class"``.
        allow_empty: Whether a set can be empty.
        level: Deprecated name of ``coverage``.

    Attributes:
        classes_without_guarantee_: With ``by="class"``, index and name of each class
            that has too few held-out samples.

    Example:
        >>> logits = torch.randn(4000, 3).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> held_out = Predictions(logits[:2000], labels[:2000])
        >>> sets = ConformalSets(coverage=0.9).fit(held_out)
        >>> prior = held_out.labels.bincount() / 2000
        >>> is_in_set = sets.predict_sets(logits[2000:], prior)
        >>> is_in_set[torch.arange(2000), labels[2000:]].float().mean().round(
        ...     decimals=2
        ... )
        tensor(0.9100)
    """

    def __init__(
        self,
        coverage: float = 0.9,
        by: By = "all",
        *,
        allow_empty: bool = False,
        level: float | None = None,
    ) -> None:
        if level is not None:
            _warn_renamed("level", "coverage")
            coverage = level
        if not isinstance(coverage, int | float) or not 0 < coverage < 1:
            raise ValueError(
                "`coverage` must be greater than 0 and less than 1, but is "
                f"{coverage!r}. Write 90 % as 0.9."
            )
        if by not in get_args(By):
            raise ValueError(f"`by` must be 'all' or 'class', but is {by!r}.")
        self.coverage, self.by, self.allow_empty = float(coverage), by, allow_empty

    def fit(self, held_out: Predictions) -> Self:
        """Store labelled samples that the model was not trained on."""
        self._f, self._y = held_out.logits, held_out.labels  # (n, C), (n,)
        n = self.counts_ = torch.bincount(self._y, minlength=held_out.num_classes)
        known, prior = held_out.source_counts, held_out.logit_prior
        frequency = from_counts((n if known is None else known) + UNSEEN)
        self._log2_frequency = frequency.log2()
        self._prior = _held_out_prior(n, known)
        if prior is None:
            prior = frequency if known is None else from_counts(known)
        self.logit_prior_ = prior
        self.classes_without_guarantee_ = {
            c: held_out.class_names[c]
            for c, num_samples in enumerate(n.tolist())
            if self.by == "class" and self._rank(num_samples) > num_samples
        }
        return self

    def predict_sets(
        self,
        logits: _Logits,
        target_prior: VectorLike,
        prediction_prior: VectorLike | None = None,
    ) -> _Logits:
        """Return whether each class is in each sample's set, bool, shape (N, C).

        Args:
            logits: Target logits from the same model, shape (N, C), torch or NumPy; the
                result has the same kind and device.
            target_prior: :math:`q`, the prior that the coverage holds for, shape (C,).
                A class whose share is 0 is in a set only if it is predicted.
            prediction_prior: Prior of the predictions that are shown with the sets, if
                it is not ``target_prior``, shape (C,).
        """
        f = check_logits(as_tensor(logits, "logits"))
        t = self.thresholds(target_prior)
        if f.shape[1] != len(t):
            raise ValueError(
                f"`logits` has {f.shape[1]} classes, but the held-out ones have "
                f"{len(t)}."
            )
        p, predicted = self._posteriors(f, target_prior), None
        if not self.allow_empty:
            is_same = prediction_prior is None and self.by == "all"
            shown = target_prior if prediction_prior is None else prediction_prior
            g = p if is_same else self._retargeted(f, shown)
            predicted = g.argmax(dim=1)
        is_in = set_scores(p, predicted) <= t  # (N, C)
        if isinstance(logits, np.ndarray):
            return is_in.numpy()
        return is_in.to(f.device)

    def sets(self, logits: Any, target_prior: VectorLike) -> Any:
        """Return :meth:`predict_sets`, the new name of this method."""
        _warn_renamed("sets", "predict_sets")
        return self.predict_sets(logits, target_prior)

    def thresholds(self, target_prior: VectorLike) -> Tensor:
        """Return the largest score at which each class is in a set, float64, (C,)."""
        if not hasattr(self, "counts_"):
            raise RuntimeError(
                "This ConformalSets is not fitted. Call fit(held_out) with labelled "
                "samples that the model was not trained on first."
            )
        y, num_classes = self._y, len(self.counts_)
        q = as_prior(target_prior, name="target_prior", num_classes=num_classes)
        p = self._posteriors(self._f, q)
        s, order = set_scores(p)[torch.arange(len(y)), y].sort()
        y = y[order]
        if self.by == "all":
            w = q / self._prior  # (C,), infinite without held-out samples
            t = _quantiles(s, w[y], w, self.coverage)
        else:
            occurs = (q > 0).double()
            t = torch.stack(
                [self._class_threshold(c, s, y, occurs) for c in range(num_classes)]
            )
        return torch.where(q > 0, t, PREDICTED_SCORE)

    def expected_coverage(
        self,
        prior: VectorLike,
        target_prior: VectorLike,
        prediction_prior: VectorLike | None = None,
    ) -> float:
        """Estimate the coverage under ``prior`` of the sets for ``target_prior``.

        Use this before you state a coverage, if the class distribution may differ from
        ``target_prior``. Classes without held-out samples count as not covered, unless
        they are in every set.

        Args:
            prior: Class distribution of the samples, shape (C,).
            target_prior: See :meth:`predict_sets`.
            prediction_prior: See :meth:`predict_sets`.
        """
        t, y = self.thresholds(target_prior), self._y
        is_in = self.predict_sets(self._f, target_prior, prediction_prior)
        is_covered = is_in[torch.arange(len(y)), y].double()
        num_covered = torch.bincount(y, is_covered, minlength=len(t))
        share = torch.where(t.isinf(), 1.0, num_covered / self.counts_.clamp_min(1))
        return float(as_prior(prior, name="prior", num_classes=len(t)) @ share)

    def _class_threshold(self, c: int, s: Tensor, y: Tensor, occurs: Tensor) -> Tensor:
        """Return the threshold of class c from scores in ascending order."""
        own = s[y == c]
        n, rank = len(own), self._rank(len(own))
        if rank <= n:
            return own[rank - 1]
        distance = self._log2_frequency - self._log2_frequency[c]
        similarity = (occurs * distance.square().div(-2).exp())[y]  # (n,)
        w = similarity / self.counts_[y]
        own_weight = w.square().sum() / (w.sum() * similarity.max())
        borrowed = _quantiles(s, w, own_weight[None], self.coverage)
        lowest = int(self.coverage * n * (1 + SLACK))  # own quantile, not corrected
        return torch.cat([borrowed, own[:lowest]]).max()

    def _rank(self, num_samples: int) -> int:
        """Return which of the sorted scores covers; more than there are if none."""
        return math.ceil(self.coverage * (num_samples + 1) * (1 - SLACK))

    def _posteriors(self, f: Tensor, target_prior: VectorLike) -> Tensor:
        q = as_prior(target_prior, name="target_prior")
        prior = q if self.by == "all" else from_counts(q > 0)
        return self._retargeted(f, prior).softmax(dim=1)

    def _retargeted(self, f: Tensor, prior: VectorLike) -> Tensor:
        # Rounded like held-out logits, otherwise equal scores would differ.
        f = f.cpu().to(self._f.dtype).double()
        return post_compensate(f, logit_prior=self.logit_prior_, target_prior=prior)


def _warn_renamed(old: str, new: str) -> None:
    warnings.warn(
        f"`{old}` of ConformalSets is deprecated. Use `{new}`.",
        DeprecationWarning,
        stacklevel=3,
    )


def _held_out_prior(counts: Tensor, source_counts: Tensor | None) -> Tensor:
    """Return the prior that the held-out labels are a sample of.

    It is the source prior if classes are missing and their counts agree with it, in a
    chi-square test with the exact mean and variance. Otherwise it is their own shares,
    which are better for stratified samples.
    """
    if source_counts is None or counts.all() or counts[source_counts == 0].any():
        return from_counts(counts)
    occurs, n = source_counts > 0, counts.sum()
    p = from_counts(source_counts)[occurs]
    C = len(p)
    statistic = (counts[occurs] - n * p).square().div(n * p).sum()
    statistic /= 1 + n / source_counts.sum()  # the source counts are a sample too
    variance = 2 * (C - 1) + (p.reciprocal().sum() - C * C - 2 * C + 2) / n
    agrees = statistic <= C - 1 + MAX_DEVIATION * variance.sqrt()
    return from_counts(source_counts if agrees else counts)


def _quantiles(scores: Tensor, weights: Tensor, own: Tensor, coverage: float) -> Tensor:
    """Return for each weight at infinity where ``coverage`` of all weight is reached.

    Args:
        scores: In ascending order, shape (n,).
        weights: Of the scores, shape (n,).
        own: Weights at infinity, of the new sample, shape (K,).
        coverage: Share of the weight to reach.

    Returns:
        Shape (K,); infinite if the scores have less weight than that.
    """
    reached = weights.cumsum(dim=0)
    wanted = coverage * (reached[-1] + own) * (1 - SLACK)
    wanted = wanted.nan_to_num(torch.inf)  # neither held out nor in the target
    beyond = torch.cat([scores, scores.new_full((1,), torch.inf)])
    return beyond[torch.searchsorted(reached, wanted)]
