"""Certificates: the expected accuracy of a model on unlabelled data, with intervals."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tailshift.checks import ArrayLike, as_tensor, check_logits
from tailshift.deprecation import warn_deprecated
from tailshift.estimators.adaptation import (
    calibration_helps,
    check_settings,
    warn_of_repeated,
)
from tailshift.estimators.base import PriorEstimator
from tailshift.estimators.evidence import (
    Evidence,
    FigureDraws,
    Findings,
    Status,
)
from tailshift.estimators.known_classes import ClassList, KnownClasses
from tailshift.estimators.replicates import NUM_REPLICATES, widened_interval
from tailshift.estimators.retargeting import Retargeting
from tailshift.predictions import Predictions
from tailshift.targets import Target, as_target_prior

Ends = tuple[float, float]
NO_FIGURE = float("nan")
FIGURE_NAMES = ("accuracy", "macro_recall", "ece", "nll")


@dataclass(frozen=True, eq=False)
class Performance:
    """Expected performance of one rule, each figure with its 95 % interval.

    The figures are those of the target population. Those of the very samples that you
    gave differ from them by sampling noise.

    Attributes:
        accuracy: Share of correct predictions, in [0, 1].
        accuracy_interval: Lower and upper end.
        macro_recall: Mean recall of the classes that occur, in [0, 1].
        macro_recall_interval: Lower and upper end.
        ece: Expected calibration error in 20 bins, lower is better, in [0, 1].
        ece_interval: Lower and upper end.
        nll: Negative log-likelihood per sample in nats, lower is better.
        nll_interval: Lower and upper end.
        recall: Share of correct predictions of each class, shape (C,).
        recall_interval: Lower and upper ends, shape (2, C).
    """

    accuracy: float
    accuracy_interval: Ends
    macro_recall: float
    macro_recall_interval: Ends
    ece: float
    ece_interval: Ends
    nll: float
    nll_interval: Ends
    recall: Tensor
    recall_interval: Tensor


@dataclass(frozen=True, eq=False)
class Certificate(Performance):
    """Expected performance of a model that is re-targeted to unlabelled data.

    The figures of :class:`Performance` are those of the model re-targeted to
    ``target_prior``. If the certificate is refused, every figure is NaN.

    Attributes:
        target_prior: Prior of the target, estimated or given, shape (C,).
        prior_interval: Its 95 % interval, shape (2, C).
        source_prior: Prior of the training data, shape (C,).
        as_trained: Figures of the predictions as trained.
        gain: Gain in accuracy from re-targeting.
        gain_interval: Its 95 % interval.
        assumption_p_value: P-value of the test whether the target is a mixture of the
            known classes, in (0, 1].
        status: ``"supported"``, ``"indicative"`` (too little evidence for intervals to
            have their coverage) or ``"refused"`` (the assumption does not hold).
        reason: Status and its cause in one sentence.
        retarget: Maps logits (N, C) to log probabilities under ``target_prior``.
        num_held_out: Number of held-out labels.
        num_target: Number of distinct unlabelled samples.
        num_repeated: Number of unlabelled samples that repeat another one.
    """

    target_prior: Tensor
    prior_interval: Tensor
    source_prior: Tensor
    as_trained: Performance
    gain: float
    gain_interval: Ends
    assumption_p_value: float
    status: Status
    reason: str
    retarget: Retargeting
    num_held_out: int
    num_target: int
    num_repeated: int

    @property
    def is_refused(self) -> bool:
        """Whether no figure is given."""
        return self.status == "refused"

    @property
    def is_indicative(self) -> bool:
        """Whether there is too little evidence for intervals to have their coverage."""
        return self.status == "indicative"

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values: lists, and None for NaN."""
        found: dict[str, Any] = _jsonable(self)
        return found | {"is_refused": self.is_refused}


def certify(
    held_out: Predictions,
    target_logits: ArrayLike,
    target_prior: Target | None = None,
    *,
    classes: ClassList | None = None,
    floor: float = 0.0,
    estimator: PriorEstimator | str = "map_em",
    alpha: float = 0.01,
    features: tuple[Tensor, Tensor] | None = None,
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
    announce: Callable[[str], None] = lambda phase: None,
    level: float | None = None,
) -> Certificate:
    r"""Estimate accuracy on unlabelled data.

    Use this before you deploy a model on a new site. The target is taken for a mixture
    of the known classes, :math:`\sum_c q_c\, p_s(x|c)`. A test checks that first. If
    it rejects, the certificate is refused. Otherwise accuracy is :math:`\sum_c q_c
    S_c`, with the prior q estimated from the unlabelled samples and the recalls
    :math:`S_c` from held-out labels and calibrated posteriors
    (:mod:`~tailshift.estimators.figures`). Intervals come from replicates of held-out
    labels, calibrator and unlabelled samples together
    (:mod:`~tailshift.estimators.replicates`).

    A new class that looks like the known ones cannot be seen in logits. Give
    ``features`` if you have them.

    Args:
        held_out: Labelled data that the model was not trained on, with
            ``source_counts`` and ``logit_prior`` if they are known.
        target_logits: Logits of the target from the same model, shape (N, C).
        target_prior: Prior of the target if it is known: a prior (C,), a name or a
            file. By default it is estimated.
        classes: Names or ids of the classes that can occur, or a text file with one
            name per line; see :func:`~tailshift.estimators.adapt`.
        floor: Share of the target that all other classes keep together.
        estimator: Name of an estimator, or an estimator; see
            :func:`~tailshift.estimators.adapt`.
        alpha: Size of the test of the label-shift assumption.
        features: Features of the held-out and of the unlabelled samples, (n, D) and
            (N, D), for the test.
        num_replicates: Number of replicates, at least 39.
        seed: Seed of the replicates.
        announce: Called with the name of each phase.
        level: Deprecated name of ``alpha``.

    Example:
        >>> logits = torch.randn(3000, 3).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> held_out = Predictions(logits[:1000], labels[:1000])
        >>> target = logits[1000:][labels[1000:] > 0]
        >>> found = certify(held_out, target)
        >>> found.target_prior.round(decimals=1)
        tensor([0.0000, 0.5000, 0.5000], dtype=torch.float64)
        >>> round(found.accuracy, 1), found.gain_interval[0] > 0, found.status
        (0.9, True, 'supported')
    """
    if level is not None:
        warn_deprecated("level", "`alpha`")
        alpha = level
    check_settings(alpha, num_replicates)
    f = check_logits(as_tensor(target_logits, "target_logits").cpu())
    _check_classes(held_out, f)
    evidence = Evidence(
        held_out,
        f,
        classes=classes,
        floor=floor,
        target_prior=_given_prior(held_out, target_prior),
        estimator=estimator,
        features=features,
        num_replicates=num_replicates,
        seed=seed,
        announce=announce,
    )
    warn_of_repeated(evidence.num_repeated, len(f))
    announce(f"computing {num_replicates} replicates")
    is_calibrated = calibration_helps(evidence)
    rules = [
        evidence.rule(evidence.prior, is_calibrated=is_calibrated),
        evidence.rule(evidence.estimator.source_prior_, is_calibrated=False),
    ]
    found = evidence.examine(rules, with_losses=True, alpha=alpha)
    retarget = evidence.retargeting(evidence.prior, is_calibrated=is_calibrated)
    return _certificate(evidence, found, retarget, alpha)


def _check_classes(held_out: Predictions, f: Tensor) -> None:
    if f.shape[1] != held_out.num_classes:
        raise ValueError(
            f"`target_logits` has {f.shape[1]} classes, but `held_out` has "
            f"{held_out.num_classes}. Both must come from one model."
        )


def _given_prior(held_out: Predictions, target: Target | None) -> Tensor | None:
    if target is None:
        return None
    return as_target_prior(
        target,
        num_classes=held_out.num_classes,
        source_counts=held_out.source_counts,
        class_names=held_out.class_names,
    )


def _certificate(
    evidence: Evidence, found: Findings, retarget: Retargeting, alpha: float
) -> Certificate:
    q, known = evidence.expand_prior(evidence.prior), evidence.known
    facts: dict[str, Any] = {
        "source_prior": evidence.expand_prior(evidence.estimator.source_prior_),
        "assumption_p_value": found.p_value,
        "num_held_out": len(evidence.held_out.labels),
        "num_target": len(evidence.logits),
        "num_repeated": evidence.num_repeated,
        "retarget": retarget,
    }
    mixture = "the given mixture" if evidence.is_known else "any mixture"
    if found.p_value <= alpha:
        nothing = torch.full_like(q, NO_FIGURE)
        given = q if evidence.is_known else nothing
        unknown = _no_performance(nothing)
        return Certificate(
            **vars(unknown),
            **facts,
            target_prior=given,
            prior_interval=given.repeat(2, 1),
            as_trained=unknown,
            gain=NO_FIGURE,
            gain_interval=(NO_FIGURE, NO_FIGURE),
            status="refused",
            reason=evidence.prefixed(
                f"the samples do not look like {mixture} of the known classes "
                f"(p = {found.p_value:.3f}): no figure can be given."
            ),
        )
    shortage = evidence.shortage()
    mixture = mixture.replace("any", "a")
    reason = (
        f"the samples look like {mixture} of the known classes "
        f"(p = {found.p_value:.2f}): the figures hold as far as they are one."
    )
    if shortage:
        reason = f"indicative only: {shortage}; intervals may miss the truth."
    retargeted, trained = found.draws
    gain = retargeted.accuracy - trained.accuracy
    return Certificate(
        **vars(_performance(retargeted, known)),
        **facts,
        target_prior=q,
        prior_interval=evidence.prior_interval(found.prior),
        as_trained=_performance(trained, known),
        gain=gain[0].item(),
        gain_interval=_ends(gain, -1.0, 1.0),
        status="indicative" if shortage else "supported",
        reason=evidence.prefixed(reason),
    )


def _performance(draws: FigureDraws, known: KnownClasses) -> Performance:
    values: dict[str, Any] = {}
    for name in FIGURE_NAMES:
        figure: Tensor = getattr(draws, name)
        values[name] = figure[0].item()
        highest = math.inf if name == "nll" else 1.0
        values[f"{name}_interval"] = _ends(figure, 0.0, highest, name == "ece")
    recall = draws.recall
    interval = torch.stack(widened_interval(recall[1:], recall[0]))
    return Performance(
        **values,
        recall=known.expand(recall[0], NO_FIGURE),
        recall_interval=known.expand(interval.clamp(0, 1), NO_FIGURE),
    )


def _ends(
    draws: Tensor, lowest: float, highest: float, is_sum_of_gaps: bool = False
) -> Ends:
    low, high = widened_interval(draws[1:], draws[0])
    if is_sum_of_gaps:  # which noise can only raise: reflect the interval as well
        low, high = low.minimum(2 * draws[0] - high), high.maximum(2 * draws[0] - low)
    return max(low.item(), lowest), min(high.item(), highest)


def _no_performance(nothing: Tensor) -> Performance:
    ends = (NO_FIGURE, NO_FIGURE)
    values: dict[str, Any] = dict.fromkeys(FIGURE_NAMES, NO_FIGURE)
    values |= dict.fromkeys((f"{name}_interval" for name in FIGURE_NAMES), ends)
    return Performance(**values, recall=nothing, recall_interval=nothing.repeat(2, 1))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    if isinstance(value, Performance):
        fields = {key: part for key, part in vars(value).items() if key != "retarget"}
        return {key: _jsonable(part) for key, part in fields.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
