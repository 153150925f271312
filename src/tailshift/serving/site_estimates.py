"""Estimates of a site: class distribution, shift test and expected accuracy."""

import warnings
from typing import Any

import numpy as np

from tailshift.checks import ArrayLike
from tailshift.estimators import (
    Adaptation,
    Certificate,
    FewSamplesWarning,
    MAPEstimator,
    OnlineEstimator,
    adapt,
    certify,
)
from tailshift.estimators.map_em import STRENGTHS
from tailshift.predictions import Predictions
from tailshift.priors import from_counts
from tailshift.serving.site import LogitRows, Vector

JUDGED_HALF_LIVES = 2  # of a window, which are tested for a shift
CERTIFICATE_REPLICATES = 100  # as few as a test at the level above needs


class _FittedOnce(MAPEstimator):
    """`adapt` fits what it is given, which takes longer than the rest of it."""

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> "_FittedOnce":
        is_fitted = hasattr(self, "counts_") and len(self.counts_) == logits.shape[1]
        return self if is_fitted else super().fit(logits, labels)


class SiteEstimator:
    """Estimates and tests windows of logits; one serves all sites, one at a time.

    The estimate of a stream is that of its window, so that nothing is kept between.
    """

    def __init__(self, held_out: Predictions, half_life: float) -> None:
        counts = held_out.source_counts
        priors: dict[str, Any] = {
            "logit_prior": held_out.logit_prior,
            "source_prior": None if counts is None else from_counts(counts),
        }
        self._held_out = held_out
        self._most = int(JUDGED_HALF_LIVES * half_life)
        self._stream = OnlineEstimator(**priors, half_life=half_life)
        self._stream.fit(held_out.logits, held_out.labels)
        self._whole, self._strength = _FittedOnce(**priors), max(STRENGTHS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewSamplesWarning)  # said once already
            self._whole.fit(held_out.logits, held_out.labels)

    @property
    def strength(self) -> float:
        """How much the last judgement would draw an estimate to a tilt."""
        return self._strength

    def estimate(self, window: LogitRows, strength: float) -> Vector:
        """Return the mix (C,) at the end of a window (N, C)."""
        self._stream.strength = strength
        self._stream.reset()
        found: Vector = self._stream.update(window)
        return found

    def judge(self, window: LogitRows) -> Adaptation:
        """Return what the end of a window (N, C) supports, with a 95 % band."""
        recent = window[-self._most :].copy()
        found = adapt(self._held_out, recent, estimator=self._whole)
        self._strength = getattr(found.estimator, "strength_", self._strength)
        return found

    def certify(self, window: LogitRows) -> Certificate:
        """Return what accuracy to expect at the end of a window (N, C)."""
        return certify(
            self._held_out,
            window[-self._most :].copy(),
            estimator=self._whole,
            num_replicates=CERTIFICATE_REPLICATES,
        )


def expected_accuracy(certificate: Certificate) -> Vector | None:
    """Return accuracy and interval, as trained and for the estimate, (2, 3)."""
    if certificate.is_refused:
        return None
    both = (certificate.as_trained, certificate)
    return np.array([(part.accuracy, *part.accuracy_interval) for part in both])


def doubt(certificate: Certificate) -> str:
    """Return why the expected accuracy is not supported; empty if it is."""
    if certificate.status == "supported":
        return ""
    reason = certificate.reason
    return reason[0].upper() + reason[1:]
