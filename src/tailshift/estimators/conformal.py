"""Prediction sets: classes that hold the right one as often as asked, after a shift."""

import math
from typing import Any, Literal, Self, TypeAlias, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor, check_logits
from tailshift.compensation import post_compensate
from tailshift.predictions import Predictions
from tailshift.priors import VectorLike, as_prior, from_counts

By: TypeAlias = Literal["all", "class"]

TOP_SCORE = -1.0  # below all others: the likeliest class is in every set
UNSEEN = 0.5  # held-out samples that a class is taken to have if no prior is known
SLACK = 1e-9  # relative, for sums of weights that are equal but for rounding


def set_scores(probs: Tensor) -> Tensor:
    r"""Return how odd each class would be: :math:`1 - p`, and −1 for the likeliest.

    A set takes all classes up to a threshold, and so is never empty; that the likeliest
    class is always in is counted when the threshold is chosen.

    Args:
        probs: Shape (N, C).

    Example:
        >>> set_scores(torch.tensor([[0.5, 0.25, 0.25]]))
        tensor([[-1.0000,  0.7500,  0.7500]])
    """
    top = probs.argmax(dim=1, keepdim=True)
    return (1 - probs).scatter_(1, top, TOP_SCORE)


class ConformalSets:
    r"""Sets of classes that hold the right one with probability ``level``.

    A class y is in the set of x if its score (:func:`set_scores`), under posteriors
    re-targeted to :math:`q`, is at most

    .. math:: t_y = \mathrm{Quantile}\Big(level;\;
              \frac{\sum_i w_{y_i} \delta_{s_i} + w_y \delta_\infty}
                   {\sum_i w_{y_i} + w_y}\Big), \quad w_y = \frac{q_y}{p_s(y)}

    with the scores :math:`s_i` of held-out samples and the share :math:`p_s` of each
    class among them [podkopaev2021]. If the classes look alike in source and target and
    q is the target's prior, at least ``level`` of the target's samples are covered, and
    hardly more unless some weights are large or the model's first answer alone is right
    more often. A class without held-out samples is then in every set.

    With ``by="class"`` that share of *each* class is covered, whatever q is: only its
    own samples count. A class with fewer than :math:`M = 2 / (1 - level)` of them is
    made up to M by all held-out samples, weighted as above, and then the share is
    approximate.

    By default the likeliest class is in every set, and where it alone is right more
    often than ``level``, so often are the sets. With ``allow_empty`` every class is
    scored by :math:`1 - p`, as in plain split conformal prediction, and ``level`` is
    covered there too. An empty set then says that even the likeliest class is less
    likely than the right one is in ``level`` of all samples. Want it where such a
    sample goes to a person; not where each must have an answer.

    Args:
        level: Share of samples to cover.
        by: ``"all"``, over the target's samples together, for the smallest sets; or
            ``"class"``, for each class.
        allow_empty: Whether a set may be without any class.

    Example:
        >>> logits = torch.randn(4000, 3).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> held_out = Predictions(logits[:2000], labels[:2000])
        >>> sets = ConformalSets(0.9).fit(held_out)
        >>> found = sets.sets(logits[2000:], held_out.labels.bincount() / 2000)
        >>> found[torch.arange(2000), labels[2000:]].float().mean().round(decimals=2)
        tensor(0.9100)
    """

    def __init__(
        self, level: float = 0.9, by: By = "all", *, allow_empty: bool = False
    ) -> None:
        self.level = check_level(level)
        if by not in get_args(By):
            raise ValueError(f"`by` must be 'all' or 'class', but is {by!r}.")
        self.by = by
        self.allow_empty = allow_empty

    def fit(self, held_out: Predictions) -> Self:
        """Take labelled samples that the model was not trained on."""
        self._f, self._y = held_out.logits.double(), held_out.labels  # (n, C), (n,)
        self.counts_ = torch.bincount(self._y, minlength=held_out.num_classes)
        self.trained_prior_ = _trained_prior(held_out, self.counts_)
        return self

    @overload
    def sets(self, logits: Tensor, target_prior: VectorLike) -> Tensor: ...
    @overload
    def sets(
        self, logits: NDArray[Any], target_prior: VectorLike
    ) -> NDArray[np.bool_]: ...
    def sets(
        self, logits: ArrayLike, target_prior: VectorLike
    ) -> Tensor | NDArray[np.bool_]:
        """Return which classes are in each sample's set, bool, shape (N, C).

        Args:
            logits: Those of the target, of the same model, shape (N, C), torch or
                NumPy; the result is of the same kind, on the same device.
            target_prior: :math:`q`, shape (C,). A class whose share is 0 is in no set.
        """
        f = check_logits(as_tensor(logits, "logits"))
        t = self.thresholds(target_prior)
        if f.shape[1] != len(t):
            raise ValueError(
                f"`logits` has {f.shape[1]} classes, but the held-out ones have "
                f"{len(t)}."
            )
        is_in = self._scores(f.cpu().double(), target_prior) <= t  # (N, C)
        is_in &= as_prior(target_prior, name="target_prior") > 0
        return is_in.numpy() if isinstance(logits, np.ndarray) else is_in.to(f.device)

    def thresholds(self, target_prior: VectorLike) -> Tensor:
        """Return the largest score at which each class is in a set, float64, (C,)."""
        self._check_fitted()
        q = as_prior(target_prior, name="target_prior", num_classes=len(self.counts_))
        y = self._y
        s = self._scores(self._f, q)[torch.arange(len(y)), y]  # (n,)
        order = s.argsort()
        s, y = s[order], y[order]
        v = q / self.counts_  # q_y / p_s(y), a sample's weight; inf or NaN if unseen
        if self.by == "all":
            return _quantiles(s, v[y], v, self.level)
        return self._by_class(s, y, v, q)

    def _by_class(self, s: Tensor, y: Tensor, v: Tensor, q: Tensor) -> Tensor:
        """Return the quantile of each class's scores, made up to M by those of all."""
        pooled = v[y] / v[y].sum()  # (n,)
        expected = (q * v)[self.counts_ > 0].sum() / v[y].sum()  # a target's own weight
        M = math.ceil(2 / (1 - self.level) - SLACK)
        thresholds = torch.empty(len(q), dtype=torch.float64)
        for c, n in enumerate(self.counts_.tolist()):
            lacking = max(0, M - n)
            weights = (y == c) + lacking * pooled
            own = n / (n + lacking) + lacking * expected
            thresholds[c] = _quantiles(s, weights, own[None], self.level)[0]
        return thresholds

    def _scores(self, f: Tensor, target_prior: VectorLike) -> Tensor:
        g = post_compensate(
            f, trained_prior=self.trained_prior_, target_prior=target_prior
        )
        p = g.softmax(dim=1)
        return 1 - p if self.allow_empty else set_scores(p)

    def _check_fitted(self) -> None:
        if not hasattr(self, "counts_"):
            raise RuntimeError(
                "This ConformalSets is not fitted. Call fit(held_out) with labelled "
                "samples that the model was not trained on first."
            )


def check_level(level: float) -> float:
    """Return a share of samples to cover, and raise if it is none."""
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(
            f"`level` must be greater than 0 and less than 1, but is {level!r}."
        )
    return float(level)


def _trained_prior(held_out: Predictions, counts: Tensor) -> Tensor:
    """Return the prior that logits carry: as said, or that of the training data."""
    if held_out.trained_prior is not None:
        return held_out.trained_prior
    known = held_out.source_counts
    return from_counts(counts + UNSEEN if known is None else known)


def _quantiles(scores: Tensor, weights: Tensor, own: Tensor, level: float) -> Tensor:
    """Return for each weight at infinity where ``level`` of all weight is reached.

    Args:
        scores: Sorted, shape (n,).
        weights: Theirs, shape (n,).
        own: Weight at infinity, that of the sample in question, shape (K,).
        level: Share of the weight to reach.

    Returns:
        Shape (K,); infinite if the scores have less than that.
    """
    reached = weights.cumsum(dim=0)
    wanted = level * (reached[-1] + own) * (1 - SLACK)
    wanted = wanted.nan_to_num(torch.inf)  # neither held out nor in the target
    beyond = torch.cat([scores, scores.new_full((1,), torch.inf)])
    return beyond[torch.searchsorted(reached, wanted)]
