"""Several labels per image: a prior per label, corrected and estimated one by one."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tailshift.priors import as_tensor
from tailshift.retarget.names import ClassNames, read_class_list, read_frequencies
from tailshift.retarget.scores import RetargetRule, ScoreArray

MAX_EM_STEPS = 2000
STEP_TOLERANCE = 1e-12
EVEN = 0.5
MIN_FREQUENCY = 1e-6  # a frequency of 0 or 1 could not be moved by any score


def estimate_frequencies(scores: ScoreArray, logit_prior: ScoreArray) -> ScoreArray:
    r"""Estimate how frequent each label is among unlabelled images, by EM per label.

    .. math:: q \leftarrow \frac{1}{N} \sum_i \frac{s_i\, q / \pi}
              {s_i\, q / \pi + (1 - s_i)(1 - q) / (1 - \pi)}

    Use this for sigmoid scores s that are calibrated under the label frequency π.

    Args:
        scores: Shape (N, C); NaN where a score is not given.
        logit_prior: π, in (0, 1), shape (C,).

    Example:
        >>> s = np.array([[0.9], [0.9], [0.9], [0.1]])
        >>> estimate_frequencies(s, np.array([0.5])).round(2)
        array([0.81])
    """
    given = ~np.isnan(scores)
    s, n = np.where(given, scores, 0.0), np.maximum(given.sum(axis=0), 1)
    q = logit_prior.copy()
    for _ in range(MAX_EM_STEPS):
        yes = s * (q / logit_prior)
        no = (1 - s) * ((1 - q) / (1 - logit_prior))
        with np.errstate(invalid="ignore"):
            after = np.where(given, yes / (yes + no), 0.0).sum(axis=0) / n
        after = np.clip(after, MIN_FREQUENCY, 1 - MIN_FREQUENCY)
        is_done = np.abs(after - q).max() < STEP_TOLERANCE
        q = after
        if is_done:
            break
    return np.asarray(q)


def plan_labels(
    names: ClassNames,
    *,
    classes: object,
    target: object,
    adapt: bool,
    logit_prior: object,
    draw: Callable[[], ScoreArray],
) -> tuple[RetargetRule, list[str]]:
    """Return the rule for sigmoid scores, and what was assumed and found.

    Args:
        names: Names of the labels.
        classes: Labels that can occur; the others get the frequency 0.
        target: Frequency of each label: a file of names and frequencies, or shape (C,).
        adapt: Whether to estimate the frequencies from the scores.
        logit_prior: ``"uniform"`` (every label in half of the training images),
            ``"mean"`` (the mean score of these rows), a file of names and frequencies,
            or shape (C,).
        draw: Returns a sample of the scores, shape (N, C).
    """
    notes = ["several labels per image: each label has its own prior."]
    before, assumption = _label_prior(names, logit_prior, draw)
    notes.append(f"logit prior: {assumption}")
    after = before
    if target is not None:
        after = _frequencies(names, target, "target")
        notes.append("target prior: as given.")
    elif adapt:
        after = estimate_frequencies(draw(), before)
        notes.append("target prior: estimated without labels, by EM per label.")
    if classes is not None:
        wanted = read_class_list(classes)  # type: ignore[arg-type]
        ids, missing = names.ids(wanted, "`classes`")
        if not ids:
            raise ValueError(
                "`classes` names no label of the predictions: "
                f"{names.describe_missing(missing)}."
            )
        after = np.where(np.isin(np.arange(len(after)), ids), after, 0.0)
        notes.append(f"{len(ids):,} of {len(names.names):,} labels can occur.")
    return RetargetRule("sigmoid", before, after), notes


def _label_prior(
    names: ClassNames, given: object, draw: Callable[[], ScoreArray]
) -> tuple[ScoreArray, str]:
    if isinstance(given, str) and given == "uniform":
        return np.full(len(names.names), EVEN), (
            "every label is assumed to be in half of the training images. Give "
            "training frequencies (`logit_prior`, --logit-prior) if you have them."
        )
    if isinstance(given, str) and given == "mean":
        mean = np.nan_to_num(np.nanmean(draw(), axis=0), nan=EVEN)
        return np.clip(mean, MIN_FREQUENCY, 1 - MIN_FREQUENCY), (
            "the mean scores, assuming that the predictions follow the model's own "
            "prior."
        )
    found = _frequencies(names, given, "logit_prior")
    if (found <= 0).any() or (found >= 1).any():
        raise ValueError("`logit_prior` must lie between 0 and 1 for every label.")
    return found, "as given."


def _frequencies(names: ClassNames, given: object, name: str) -> ScoreArray:
    """Return the frequency of each label, shape (C,)."""
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if not path.is_file():
            raise FileNotFoundError(
                f"`{name}` must be a file of label names and frequencies if there are "
                f"several labels per image, but there is no file {path}."
            )
        found = read_frequencies(path, names)
    else:
        found = as_tensor(given, name).to(torch.float64).numpy()
    if found.shape != (len(names.names),) or not ((found >= 0) & (found <= 1)).all():
        raise ValueError(
            f"`{name}` must hold a frequency from 0 to 1 for each of the "
            f"{len(names.names)} labels."
        )
    return np.asarray(found)
