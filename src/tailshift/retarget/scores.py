"""Kinds of scores: recognised, checked row by row, and re-targeted."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tailshift.estimators.retargeting import Retargeting

ScoreArray: TypeAlias = NDArray[np.float64]
ScoreKind: TypeAlias = Literal[
    "logits", "log_probabilities", "probabilities", "sigmoid"
]
SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)

ROW_SUM_TOLERANCE = 1e-3
MIN_SIMPLEX_SHARE = 0.5  # of rows that sum to 1, for scores to be probabilities
RESCALE_TOLERANCE = 1e-12  # a row this close to its own total is left as it is


def recognise_scores(scores: ScoreArray, *, is_partial: bool = False) -> ScoreKind:
    """Return the kind of scores (N, C), by their range and the sums of their rows.

    Args:
        scores: Some rows; NaN where a score is not given.
        is_partial: Whether rows may hold the largest scores only.

    Example:
        >>> recognise_scores(np.array([[0.7, 0.3], [0.1, 0.9]]))
        'probabilities'
        >>> recognise_scores(np.array([[0.7, 0.9], [0.1, 0.0]]))
        'sigmoid'
    """
    rows = scores[~blank_rows(scores)]
    if not len(rows):
        return "probabilities"
    low, high = np.nanmin(rows, axis=1), np.nanmax(rows, axis=1)
    inside = (low >= 0) & (high <= 1 + ROW_SUM_TOLERANCE)
    if inside.mean() >= MIN_SIMPLEX_SHARE:
        near = _are_simplex(np.nansum(rows, axis=1), is_partial)
        return (
            "probabilities" if near[inside].mean() >= MIN_SIMPLEX_SHARE else "sigmoid"
        )
    if (high <= ROW_SUM_TOLERANCE).mean() >= MIN_SIMPLEX_SHARE:
        with np.errstate(over="ignore"):
            sums = np.nansum(np.exp(rows), axis=1)
        if _are_simplex(sums, is_partial).mean() >= MIN_SIMPLEX_SHARE:
            return "log_probabilities"
    return "logits"


def _are_simplex(sums: ScoreArray, is_partial: bool) -> NDArray[np.bool_]:
    near = np.abs(sums - 1) <= ROW_SUM_TOLERANCE
    if is_partial:
        near |= sums <= 1 + ROW_SUM_TOLERANCE
    return np.asarray(near)


def row_faults(
    scores: ScoreArray, kind: ScoreKind, *, is_partial: bool
) -> dict[int, str]:
    """Return what is wrong with each row that cannot be used.

    Args:
        scores: Shape (N, C); NaN where a score is not given or cannot be read.
        kind: Kind of the scores.
        is_partial: Whether rows may hold the largest scores only.

    Example:
        >>> row_faults(
        ...     np.array([[0.7, 0.3], [0.7, 0.7]]), "probabilities", is_partial=False
        ... )
        {1: 'sums to 1.4'}
    """
    if kind == "probabilities" and _are_clean(scores):
        return {}
    missing = np.isnan(scores)
    faults: dict[int, str] = {}
    allows_missing = is_partial and kind != "logits"
    wrong = missing.all(axis=1) if allows_missing else missing.any(axis=1)
    faults |= dict.fromkeys(_where(wrong), "has no score or no number")
    with np.errstate(invalid="ignore", over="ignore"):
        faults |= dict.fromkeys(_where((scores == np.inf).any(axis=1)), "holds inf")
        if kind in ("probabilities", "sigmoid"):
            out = ((scores < 0) | (scores > 1 + ROW_SUM_TOLERANCE)).any(axis=1)
            faults |= dict.fromkeys(_where(out), "holds a score outside 0 to 1")
        else:
            empty = (missing | (scores == -np.inf)).all(axis=1)
            faults |= dict.fromkeys(_where(empty), "has no finite score")
        if kind in ("probabilities", "log_probabilities"):
            p = scores if kind == "probabilities" else np.exp(scores)
            sums = np.nansum(p, axis=1)
            off = sums > 1 + ROW_SUM_TOLERANCE
            if not is_partial:
                off |= sums < 1 - ROW_SUM_TOLERANCE
            for row in _where(off):
                faults.setdefault(row, f"sums to {sums[row]:.4g}")
    return faults


def _are_clean(p: ScoreArray) -> bool:
    """Return whether all rows are probabilities that sum to 1; most chunks are."""
    if not p.min() >= 0:  # NaN included
        return False
    return bool((np.abs(p.sum(axis=1) - 1) <= ROW_SUM_TOLERANCE).all())


def _where(mask: Any) -> list[int]:
    return [int(row) for row in mask.nonzero()[0]]


def blank_rows(scores: ScoreArray) -> NDArray[np.bool_]:
    """Return which rows have no score at all, shape (N,)."""
    return np.asarray(np.isnan(scores).all(axis=1))


def spread_rest(p: ScoreArray, logit_prior: ScoreArray) -> ScoreArray:
    """Fill in probabilities that are not given, by the logit prior.

    The mass that the given scores leave is spread over the other classes. None of them
    gets more than the smallest given score, as only the largest scores are given.

    Example:
        >>> spread_rest(np.array([[0.9, np.nan, np.nan]]), np.full(3, 1 / 3))
        array([[0.9 , 0.05, 0.05]])
    """
    missing = np.isnan(p)
    if not missing.any():
        return p
    given = np.where(missing, 0.0, p)
    rest = np.clip(1 - given.sum(axis=1, keepdims=True), 0.0, None)
    share = np.where(missing, logit_prior, 0.0)
    total = share.sum(axis=1, keepdims=True)
    share *= rest / np.where(total > 0, total, 1.0)
    smallest = np.where(missing, np.inf, p).min(axis=1, keepdims=True)
    return np.asarray(given + np.minimum(share, smallest))


def log_scores(
    scores: ScoreArray, kind: ScoreKind, logit_prior: ScoreArray, scale: float = 1.0
) -> ScoreArray:
    """Return log probabilities, up to a constant per row, of scores of any kind."""
    if kind == "logits":
        return scores * scale
    if kind == "log_probabilities":
        scores = np.exp(scores)
    with np.errstate(divide="ignore"):
        return np.log(spread_rest(scores, logit_prior))


@dataclass(frozen=True, eq=False)
class RetargetRule:
    """Re-target scores (N, C) and return scores of the same kind.

    An instance is small and picklable, so the same rule runs on one chunk after
    another, in other processes, or as a pandas UDF.

    Attributes:
        kind: Kind of the scores, in and out.
        logit_prior: Prior of the logits, shape (C,).
        target_prior: Prior in use, shape (C,).
        scale: What logits are multiplied by before they are log probabilities.
        calibrated: Used instead of the plain formula if there is a calibrator.
    """

    kind: ScoreKind
    logit_prior: ScoreArray
    target_prior: ScoreArray
    scale: float = 1.0
    calibrated: Retargeting | None = None

    def to(self, target_prior: ScoreArray) -> "RetargetRule":
        """Return the same rule for another target prior, shape (C,)."""
        calibrated = self.calibrated
        if calibrated is not None:
            calibrated = calibrated.to(torch.from_numpy(target_prior))
        return RetargetRule(
            self.kind, self.logit_prior, target_prior, self.scale, calibrated
        )

    def __call__(self, scores: ScoreArray) -> ScoreArray:
        """Return re-targeted scores; the total of a row stays what it was."""
        if self.calibrated is not None:
            return self._calibrated(scores)
        if self.kind == "probabilities":
            return self._probabilities(scores)
        ratio = log_ratio(self.logit_prior, self.target_prior)
        if self.kind == "sigmoid":
            return self._sigmoid(scores)
        if self.kind == "logits":
            return np.asarray(scores + ratio / self.scale)
        with np.errstate(divide="ignore"):
            return np.log(self._probabilities(np.exp(scores)))

    def _probabilities(self, p: ScoreArray) -> ScoreArray:
        filled = spread_rest(p, self.logit_prior)
        weights = np.exp(log_ratio(self.logit_prior, self.target_prior))
        return _rescaled(filled * weights, filled, self.target_prior)

    def _sigmoid(self, p: ScoreArray) -> ScoreArray:
        """Move each label's log odds from its logit prior to its target prior."""
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = _odds(self.target_prior) / _odds(self.logit_prior)
            with_label = p * odds
            moved = with_label / (with_label + (1 - p))
        sure = np.isnan(moved) & ~np.isnan(p)  # p = 1 under a target prior of 0
        return np.where(sure, self.target_prior, moved)

    def _calibrated(self, scores: ScoreArray) -> ScoreArray:
        assert self.calibrated is not None
        f = log_scores(scores, self.kind, self.logit_prior, self.scale)
        log_p = self.calibrated(torch.from_numpy(f)).numpy()
        if self.kind == "logits":
            return np.asarray(log_p / self.scale)
        return np.asarray(np.exp(log_p) if self.kind == "probabilities" else log_p)


def _odds(p: ScoreArray) -> ScoreArray:
    return p / (1 - p)


def log_ratio(logit_prior: ScoreArray, target_prior: ScoreArray) -> ScoreArray:
    """Return log target prior − log logit prior, −inf where the target prior is 0."""
    possible = target_prior > 0
    ratio = np.full(len(target_prior), -np.inf)
    ratio[possible] = np.log(target_prior[possible]) - np.log(logit_prior[possible])
    return ratio


def _rescaled(
    weighted: ScoreArray, before: ScoreArray, target_prior: ScoreArray
) -> ScoreArray:
    """Return rows that keep the total they had before."""
    total = before.sum(axis=1, keepdims=True)
    found = weighted.sum(axis=1, keepdims=True)
    lost = (
        found[:, 0] <= 0
    )  # no class that can occur has a score: only the prior is left
    if lost.any():
        weighted[lost] = target_prior
        found = weighted.sum(axis=1, keepdims=True)
    factor = total / found
    factor[np.abs(factor - 1) < RESCALE_TOLERANCE] = 1.0
    weighted *= factor
    return weighted


def as_floats(values: Any) -> ScoreArray:
    """Return a tensor or an array as a float64 array."""
    return np.asarray(values, dtype=np.float64)
