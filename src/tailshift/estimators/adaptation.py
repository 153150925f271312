"""Adapt to unlabelled data in one call, if that is expected to help."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tailshift.calibration import Calibrator
from tailshift.checks import ArrayLike, as_tensor, check_logits
from tailshift.deprecation import warn_deprecated
from tailshift.estimators.base import PriorEstimator
from tailshift.estimators.evidence import Evidence, Status
from tailshift.estimators.known_classes import ClassList
from tailshift.estimators.replicates import widened_interval
from tailshift.estimators.retargeting import Retargeting
from tailshift.predictions import Predictions

GAIN_QUANTILE = 0.75
"""The estimate is followed unless this quantile of its expected gain is negative. It is
shrunk towards the source prior already: a stricter rule gives up more than it saves."""
ADAPT_REPLICATES = 100
"""Default number of replicates: a decision needs fewer than a certificate."""
MIN_GAIN = 0.002
"""Expected gain in accuracy below which predictions stay as they are."""
MIN_REPLICATES = 39
"""Fewest replicates that 95 % intervals can be read from."""
REPEATED_WARNING = 0.5
"""Share of repeated samples above which a warning is raised."""


class RepeatedSamplesWarning(UserWarning):
    """Many unlabelled samples are copies of others, as from a camera that is stuck."""


@dataclass(frozen=True, eq=False)
class Adaptation:
    """An estimate of the target prior, and the decision whether to follow it.

    Attributes:
        target_prior: The prior to use, shape (C,).
        decision: Where it comes from: ``"estimate"``, ``"source"`` (predictions as
            trained) or ``"held_out"`` (the prior of the held-out data).
        estimated_prior: The estimate in any case, shape (C,).
        interval: Its 95 % interval, shape (2, C).
        gain: Expected gain in accuracy of the estimate over the better fallback.
        gain_interval: Its 95 % interval.
        gamma: Exponent of the most likely power-law shift: 1 is the source prior, 0 is
            uniform, −1 is the reversed source prior.
        assumption_p_value: P-value of the test whether the target is a mixture of the
            known classes, in (0, 1].
        status: ``"supported"``, ``"indicative"`` (too little evidence for intervals to
            have their coverage) or ``"refused"`` (the assumption does not hold).
        reason: The decision in one sentence.
        retarget: Maps logits (N, C) to log probabilities under the prior in use.
        retarget_to_estimate: The same under the estimate, in any case.
        retarget_as_trained: The same under the source prior, without calibration.
        num_repeated: Number of unlabelled samples that repeat another one.
        estimator: The fitted estimator.
    """

    target_prior: Tensor
    decision: Literal["estimate", "source", "held_out"]
    estimated_prior: Tensor
    interval: Tensor
    gain: float
    gain_interval: tuple[float, float]
    gamma: float
    assumption_p_value: float
    status: Status
    reason: str
    retarget: Retargeting
    retarget_to_estimate: Retargeting
    retarget_as_trained: Retargeting
    num_repeated: int
    estimator: PriorEstimator

    @property
    def is_adapted(self) -> bool:
        """Whether the estimate is followed."""
        return self.decision == "estimate"

    @property
    def source_prior(self) -> Tensor:
        """The prior of the training data, shape (C,)."""
        return self.retarget_as_trained.target_prior

    @property
    def calibrator(self) -> Calibrator | None:
        """The fitted calibrator, if predictions use it."""
        return self.retarget.calibrator


def adapt(
    held_out: Predictions,
    unlabelled_logits: ArrayLike,
    *,
    classes: ClassList | None = None,
    floor: float = 0.0,
    estimator: PriorEstimator | str = "map_em",
    alpha: float = 0.0025,
    features: tuple[Tensor, Tensor] | None = None,
    num_replicates: int = ADAPT_REPLICATES,
    seed: int = 0,
    announce: Callable[[str], None] = lambda phase: None,
    level: float | None = None,
    with_interval: bool | None = None,
) -> Adaptation:
    """Estimate the target prior, and follow it if that is expected to help.

    Use this before you predict on data whose class distribution may differ from that
    of the training data. Three candidates are compared: predictions as trained, the
    prior of the held-out data where it differs from the source prior, and the estimate.
    If the target does not look like a mixture of the known classes, the predictions
    stay as trained. Otherwise the estimate is followed if its expected gain in accuracy
    over the better fallback is positive, unless the replicates speak against it.

    Args:
        held_out: Labelled data that the model was not trained on, with
            ``source_counts`` and ``logit_prior`` if they are known.
        unlabelled_logits: Logits of the target from the same model, shape (N, C).
        classes: Names or ids of the classes that can occur on the target, or a text
            file with one name per line. By default all classes, or the classes with
            held-out labels if these are far fewer than the model expects.
        floor: Share of the target that all other classes keep together.
        estimator: Name of an estimator, which gets the priors of ``held_out``, or an
            estimator, which is fitted on ``held_out``.
        alpha: Size of the test of the label-shift assumption. It is strict, because a
            false rejection can cost 40 points of accuracy.
        features: Features of the held-out and of the unlabelled samples, (n, D) and
            (N, D); with them new classes and noise are found more often.
        num_replicates: Number of replicates, at least 39. If they are too few to reject
            at ``alpha``, more are drawn for the test.
        seed: Seed of the replicates.
        announce: Called with the name of each phase.
        level: Deprecated name of ``alpha``.
        with_interval: Deprecated: the interval is always computed.

    Example:
        >>> import torch
        >>> logits = torch.randn(3000, 3).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> held_out = Predictions(logits[:1000], labels[:1000])
        >>> adapt(held_out, logits[1000:]).is_adapted
        False
        >>> found = adapt(held_out, logits[1000:][labels[1000:] > 0][:500])
        >>> found.is_adapted, found.gain > 0
        (True, True)
    """
    if level is not None:
        warn_deprecated("level", "`alpha`")
        alpha = level
    if with_interval is not None:
        warn_deprecated("with_interval", "`interval` of the result, always there")
    check_settings(alpha, num_replicates)
    f = check_logits(as_tensor(unlabelled_logits, "unlabelled_logits").cpu())
    evidence = Evidence(
        held_out,
        f,
        classes=classes,
        floor=floor,
        estimator=estimator,
        features=features,
        num_replicates=num_replicates,
        seed=seed,
        announce=announce,
    )
    warn_of_repeated(evidence.num_repeated, len(f))
    announce(f"computing {num_replicates} replicates")
    return _decide(evidence, alpha)


def check_settings(alpha: float, num_replicates: int) -> None:
    """Raise unless the test and 95 % intervals are possible."""
    if not 0 <= alpha < 1:
        raise ValueError(f"`alpha` must be in [0, 1), got {alpha:g}.")
    if num_replicates < MIN_REPLICATES:
        raise ValueError(
            f"`num_replicates` must be at least {MIN_REPLICATES} for 95 % intervals, "
            f"got {num_replicates}."
        )


def warn_of_repeated(num_repeated: int, num_samples: int) -> None:
    """Warn if many samples are copies."""
    if num_repeated > REPEATED_WARNING * num_samples:
        warnings.warn(
            f"{num_repeated} of {num_samples} unlabelled samples repeat another one "
            "and are not counted. Is a camera stuck, or a file listed twice?",
            RepeatedSamplesWarning,
            stacklevel=3,
        )


def _decide(evidence: Evidence, alpha: float) -> Adaptation:
    estimator, q = evidence.estimator, evidence.prior
    p_s, p_h = estimator.source_prior_, estimator.held_out_prior_
    is_calibrated = calibration_helps(evidence)
    rules = [
        evidence.rule(q, is_calibrated=is_calibrated),
        evidence.rule(p_s, is_calibrated=False),
    ]
    if not torch.equal(p_h, p_s):
        rules.append(evidence.rule(p_h, is_calibrated=False))
    found = evidence.examine(rules, with_losses=False, alpha=alpha)
    estimate, *fallbacks = found.draws
    best = max(range(len(fallbacks)), key=lambda i: float(fallbacks[i].accuracy[0]))
    gain = estimate.accuracy - fallbacks[best].accuracy  # (1 + B,)
    low, high = widened_interval(gain[1:], gain[0])
    shortage = evidence.shortage()
    status: Status = "indicative" if shortage else "supported"
    decision: Literal["estimate", "source", "held_out"]
    decision = "source" if best == 0 else "held_out"
    if found.p_value <= alpha:
        status, decision = "refused", "source"
    elif gain[0] >= MIN_GAIN and gain[1:].quantile(GAIN_QUANTILE) > 0:
        decision = "estimate"
    prior = {"estimate": q, "source": p_s, "held_out": p_h}[decision]
    uses_calibrator = decision == "estimate" and is_calibrated
    return Adaptation(
        target_prior=evidence.expand_prior(prior),
        decision=decision,
        estimated_prior=evidence.expand_prior(q),
        interval=evidence.prior_interval(found.prior),
        gain=gain[0].item(),
        gain_interval=(low.item(), high.item()),
        gamma=getattr(estimator, "gamma_", float("nan")),
        assumption_p_value=found.p_value,
        status=status,
        reason=evidence.prefixed(
            _reason(decision, status, gain, found.p_value, shortage)
        ),
        retarget=evidence.retargeting(prior, is_calibrated=uses_calibrator),
        retarget_to_estimate=evidence.retargeting(q, is_calibrated=is_calibrated),
        retarget_as_trained=evidence.retargeting(p_s, is_calibrated=False),
        num_repeated=evidence.num_repeated,
        estimator=estimator,
    )


def calibration_helps(evidence: Evidence) -> bool:
    """Return whether calibrated predictions are no worse on held-out labels.

    The labels are re-weighted to the target. Calibrated probabilities are better in
    likelihood, so they are used unless accuracy speaks against them by more than one
    standard error.
    """
    q, n = evidence.prior, evidence.counts.double()
    calibrated, plain = (evidence.rule(q, is_calibrated=flag) for flag in (True, False))
    weights = (q / n.clamp_min(1))[plain.labels]
    difference = calibrated.hits.double() - plain.hits.double()
    mean = (weights * difference).sum() / weights.sum().clamp_min(1e-30)
    error = (weights * (difference - mean)).square().sum().sqrt() / weights.sum()
    return bool(mean >= -error)


def _reason(
    decision: str, status: Status, gain: Tensor, p_value: float, shortage: str
) -> str:
    if status == "refused":
        return (
            "the samples do not look like any mixture of the known classes "
            f"(p = {p_value:.3f}): predictions stay as trained."
        )
    points = 100 * gain[0].item()
    low, high = (100 * end.item() for end in widened_interval(gain[1:], gain[0]))
    used = {
        "estimate": "the estimated prior is used",
        "source": "predictions stay as trained",
        "held_out": "the prior of the held-out data is used",
    }[decision]
    text = (
        f"the estimated prior is expected to change accuracy by {points:+.1f} points "
        f"(95 % interval {low:+.1f} to {high:+.1f}): {used}."
    )
    return f"{text} Indicative only: {shortage}." if shortage else text
