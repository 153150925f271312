"""Decide on logit prior, target prior and calibration; the result is a rule."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from tailshift import priors
from tailshift.calibration import (
    SELECTION_SCALE_RIDGE,
    BiasCorrectedTemperatureScaling,
)
from tailshift.estimators import Adaptation, MAPEstimator
from tailshift.estimators import adapt as adapt_to
from tailshift.estimators.base import held_out_prior
from tailshift.estimators.book import SitePriors
from tailshift.estimators.known_classes import KnownClasses
from tailshift.estimators.retargeting import Retargeting
from tailshift.predictions import Predictions
from tailshift.retarget.labelled import LabelledRows
from tailshift.retarget.logit_prior import LogitPrior, choose_logit_prior
from tailshift.retarget.matching import matching_bias, matching_weights
from tailshift.retarget.names import (
    ClassNames,
    counts_prior,
    read_class_list,
    target_prior,
)
from tailshift.retarget.sample import RowSample
from tailshift.retarget.scores import (
    RetargetRule,
    ScoreArray,
    ScoreKind,
    as_floats,
    log_scores,
)
from tailshift.retarget.tables import FilePath
from tailshift.retarget.unlabelled import (
    MODEL_ERROR,
    UnlabelledEstimate,
    estimate_unlabelled,
)
from tailshift.targets import Target

MIN_LABELS = 10
"""Labels below which nothing is calibrated."""
MIN_TESTED_LABELS, LABELS_PER_CLASS = 100, 5
"""Labels from which the estimators that test their assumption are used."""
_SMOOTHING = 1.0
SHARED = "all sites together"


@dataclass(frozen=True)
class RetargetOptions:
    """What to re-target to; see :func:`tailshift.retarget`."""

    classes: Iterable[str] | FilePath | None = None
    floor: float = 0.0
    target: Target | None = None
    counts: FilePath | None = None
    smoothing: float = _SMOOTHING
    adapt: bool = False
    match: str | None = None
    logit_prior: LogitPrior = "uniform"
    logit_scale: float = 1.0
    seed: int = 0


@dataclass(eq=False)
class RetargetPlan:
    """A rule for all rows, others for the rows of known sites, and what was found.

    Attributes:
        rule: Rule of rows without a site of their own.
        known: The classes that can occur.
        sites: Rule of each site.
        notes: What was assumed and found, a sentence each.
        estimate: The estimate without labels, if there is one.
        adaptation: The estimate with labels, if there is one.
    """

    rule: RetargetRule
    known: KnownClasses
    sites: dict[str, RetargetRule] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    estimate: UnlabelledEstimate | None = None
    adaptation: Adaptation | None = None

    @property
    def target_prior(self) -> Tensor:
        """The target prior in use, shape (C,)."""
        return torch.from_numpy(self.rule.target_prior)


Drawing: TypeAlias = Callable[[], RowSample]


class Planner:
    """Makes a plan step by step.

    Args:
        names: Names of the model's classes.
        kind: Kind of the scores.
        options: What to re-target to.
        draw: Returns a sample of the predictions; called only if it is needed.
        labelled: Labelled rows, if there are any.
        reference: Unlabelled rows of known distribution, for the logit prior.
    """

    def __init__(
        self,
        names: ClassNames,
        kind: ScoreKind,
        options: RetargetOptions,
        draw: Drawing,
        labelled: LabelledRows | None = None,
        reference: tuple[ScoreArray, Target | None] | None = None,
    ) -> None:
        self.names, self.kind, self.options = names, kind, options
        self.labelled, self.reference = labelled, reference
        self._draw = draw
        self._sample: RowSample | None = None
        self.notes: list[str] = []

    @property
    def sample(self) -> RowSample:
        """A sample of the predictions, drawn once."""
        if self._sample is None:
            self._sample = self._draw()
        return self._sample

    def plan(self) -> RetargetPlan:
        """Return the plan."""
        _check_options(self.options)
        self.known = self._known_classes()
        self.logit_prior, assumption = choose_logit_prior(
            self.options.logit_prior,
            self.names,
            self.known,
            smoothing=self.options.smoothing,
            labelled=self._labelled_logits(),
            unlabelled=self._known_distribution,
        )
        self.notes.append(f"logit prior: {assumption}")
        start = self._restricted(self._starting_prior())
        rule = self._plain_rule(start)
        made = RetargetPlan(rule, self.known, notes=self.notes)
        if self.labelled is not None:
            self._calibrate(made, self.labelled, start)
        if self.options.adapt and made.adaptation is None:
            self._adapt(made, start)
        if self.options.match:
            self._match(made)
        if self._sample is not None and self._sample.sites:
            self._split_by_site(made)
        return made

    def _known_classes(self) -> KnownClasses:
        C, floor = len(self.names.names), self.options.floor
        if self.options.classes is None:
            return KnownClasses(torch.arange(C), C)
        wanted = read_class_list(self.options.classes)
        if not wanted:
            raise ValueError("`classes` is empty. Name the classes that can occur.")
        ids, missing = self.names.ids(wanted, "`classes`")
        if missing:
            self.notes.append(
                f"{len(missing)} of {len(wanted)} listed classes are not in the "
                f"predictions: {self.names.describe_missing(missing)}."
            )
        if len(ids) < 2:
            raise ValueError(
                f"`classes` must name at least 2 classes of the predictions, but "
                f"{len(ids)} of {len(wanted)} names are found"
                + (f": {self.names.describe_missing(missing)}." if missing else ".")
            )
        rest = "no other" if not floor else f"all others together {100 * floor:g} %"
        self.notes.append(
            f"{len(ids):,} of {C:,} classes can occur; {rest} class keeps probability."
            if not floor
            else f"{len(ids):,} of {C:,} classes can occur; {rest}."
        )
        return KnownClasses(torch.tensor(ids), C, floor)

    def _labelled_logits(self) -> tuple[Tensor, Tensor] | None:
        """Return labelled logits as trained, and labels."""
        if self.labelled is None:
            return None
        C = len(self.names.names)
        f = self._log_scores(self.labelled.scores, priors.uniform(C))
        return f, torch.from_numpy(self.labelled.labels)

    def _known_distribution(self) -> tuple[Tensor, Target | None, str]:
        """Return logits as trained, their class distribution, and what they are."""
        C = len(self.names.names)
        if self.reference is not None:
            scores, distribution = self.reference
            which = "reference"
        else:
            scores, which = self.sample.scores, "predictions"
            distribution = self.options.target
        return self._log_scores(scores, priors.uniform(C)), distribution, which

    def _starting_prior(self) -> Tensor:
        """Return the given target, the counts, or the logit prior, shape (C,)."""
        options = self.options
        if options.target is not None:
            found = target_prior(options.target, self.names)
            self.notes.append("target prior: as given.")
            return found
        if options.counts is None:
            return self.logit_prior
        found, missing = counts_prior(
            options.counts, self.names, smoothing=options.smoothing, allow_unknown=True
        )
        self.notes.append(
            f"target prior: the counts in {options.counts}, plus "
            f"{options.smoothing:g} per class."
        )
        if missing:
            self.notes.append(
                f"{len(missing)} counted classes are not in the predictions: "
                f"{self.names.describe_missing(missing)}."
            )
        return found

    def _restricted(self, prior: Tensor) -> Tensor:
        """Return a prior that leaves the classes that cannot occur the floor."""
        if self.known.is_everything:
            return prior
        if not prior[self.known.ids].sum() > 0:
            raise ValueError("The target prior is 0 for every class that can occur.")
        return self.known.expand_prior(self.known.prior(prior), self.logit_prior)

    def _plain_rule(self, target_prior: Tensor) -> RetargetRule:
        return RetargetRule(
            self.kind,
            as_floats(self.logit_prior),
            as_floats(target_prior),
            self.options.logit_scale,
        )

    def _log_scores(self, scores: ScoreArray, logit_prior: Tensor) -> Tensor:
        return torch.from_numpy(
            log_scores(
                scores, self.kind, as_floats(logit_prior), self.options.logit_scale
            )
        )

    def _calibrate(
        self, made: RetargetPlan, labelled: LabelledRows, start: Tensor
    ) -> None:
        """Fit a calibrator to labels; with enough labels, estimate and test as well."""
        held_out = Predictions(
            self._log_scores(labelled.scores, self.logit_prior).float(),
            torch.from_numpy(labelled.labels),
            logit_prior=self.logit_prior,
        )
        inside = self.known.predictions(held_out)
        num_labels = len(inside.labels)
        if num_labels < MIN_LABELS:
            self.notes.append(
                f"{num_labels} labels are too few to calibrate on; {MIN_LABELS} or "
                "more are used."
            )
            return
        enough = max(MIN_TESTED_LABELS, LABELS_PER_CLASS * len(self.known.ids))
        if num_labels >= enough and self.options.adapt:
            self._adapt_with_labels(made, held_out)
            return
        p_logit = self.known.prior(self.logit_prior)
        counts = torch.bincount(inside.labels, minlength=len(p_logit))
        p_h = held_out_prior(counts, p_logit)
        # Few labels often cannot tell a calibrator from none; its ridge keeps it safe.
        scaling = BiasCorrectedTemperatureScaling()
        scaling.scale_ridge = SELECTION_SCALE_RIDGE
        scaling.fit_shifted(inside.logits, inside.labels, (p_h / p_logit).log())
        self.notes.append(f"calibrated on {num_labels} labels.")
        calibrated = Retargeting(self.logit_prior, start, p_h, scaling, self.known)
        made.rule = RetargetRule(
            self.kind,
            as_floats(self.logit_prior),
            as_floats(start),
            self.options.logit_scale,
            calibrated,
        )

    def _adapt_with_labels(self, made: RetargetPlan, held_out: Predictions) -> None:
        estimator = MAPEstimator(
            logit_prior=self.logit_prior, source_prior=self.logit_prior
        )
        logits = self._log_scores(self.sample.scores, self.logit_prior).float()
        found = adapt_to(
            held_out,
            logits,
            classes=[str(c) for c in self.known.ids.tolist()],
            floor=self.known.floor,
            estimator=estimator,
            seed=self.options.seed,
        )
        made.adaptation = found
        self.notes.append(f"target prior: {found.reason}")
        made.rule = RetargetRule(
            self.kind,
            as_floats(self.logit_prior),
            as_floats(found.target_prior),
            self.options.logit_scale,
            found.retarget,
        )

    def _adapt(self, made: RetargetPlan, start: Tensor) -> None:
        """Estimate the target prior without labels, or with a few to calibrate on."""
        log_p = self._log_known(made.rule, self.sample.scores)
        found = estimate_unlabelled(
            log_p,
            self.known.prior(self.logit_prior),
            center=_positive(self.known.prior(start)),
            with_interval=True,
            seed=self.options.seed,
        )
        made.estimate = found
        made.rule = made.rule.to(as_floats(self._restricted_known(found.prior)))
        verified = "calibrated on few labels" if made.rule.calibrated else "unverified"
        kept = (
            "the shift is no larger than the model's own error could be, so the "
            "prior stays"
            if not found.weight
            else f"{100 * found.weight:.0f} % of the log ratio is kept"
        )
        self.notes.append(
            f"target prior: estimated from {len(log_p):,} rows; it relies "
            f"on the model's {verified} probabilities (assumed error per class: "
            f"a factor of {np.exp(MODEL_ERROR):.1f}); {kept}."
        )

    def _log_known(self, rule: RetargetRule, scores: ScoreArray) -> Tensor:
        """Return log probabilities (N, K) under the logit prior, calibrated if so."""
        f = self._log_scores(scores, self.logit_prior)
        if rule.calibrated is not None:
            f = rule.calibrated.to(self.logit_prior)(f)
        return f.log_softmax(dim=1)[:, self.known.ids]

    def _restricted_known(self, prior: Tensor) -> Tensor:
        """Return a prior (K,) of the known classes for all classes, (C,)."""
        return self.known.expand_prior(prior, self.logit_prior)

    def _match(self, made: RetargetPlan) -> None:
        """Choose class weights by which the predictions have the target's counts."""
        log_p = self._log_known(made.rule, self.sample.scores)
        q = self.known.prior(made.target_prior)
        if self.options.match == "expected":
            log_w = matching_weights(log_p.softmax(dim=1), q).log()
            matched = "the expected class counts"
        else:
            log_w = matching_bias(log_p, q)
            matched = "the number of rows predicted as each class"
        weighted = (self.known.prior(self.logit_prior).log() + log_w).softmax(dim=0)
        made.rule = made.rule.to(as_floats(self._restricted_known(weighted)))
        self.notes.append(f"matched exactly: {matched}, to the target prior.")

    def _split_by_site(self, made: RetargetPlan) -> None:
        """Give each site its own prior, shrunk towards that of all sites together."""
        sites = np.array(self.sample.sites, dtype=object)
        names = [self.names.names[c] for c in self.known.ids.tolist()]
        shared = _positive(self.known.prior(made.target_prior))
        book = SitePriors(names, shared)
        found = {str(site) for site in sites if str(site).strip()}
        for site in sorted(found):
            book.add(f"site {site}")
            log_p = self._log_known(made.rule, self.sample.scores[sites == site])
            estimator = _SiteEstimator(self.known.prior(self.logit_prior), shared)
            book.update(f"site {site}", log_p, estimator)  # type: ignore[arg-type]
        made.sites = {
            site: made.rule.to(
                as_floats(self._restricted_known(book.prior(f"site {site}")))
            )
            for site in sorted(found)
        }
        self.notes.append(
            f"an own prior for each of {len(found):,} sites, shrunk towards that of "
            f"{SHARED}."
        )


class _SiteEstimator:
    """Estimates a site's prior around that of all sites, without labels."""

    def __init__(self, logit_prior: Tensor, shared: Tensor) -> None:
        self._logit_prior, self._shared = logit_prior, shared
        self.effective_samples_ = 0.0

    def estimate(self, log_p: Tensor) -> Tensor:
        found = estimate_unlabelled(log_p, self._logit_prior, center=self._shared)
        self.effective_samples_ = found.effective_samples
        return found.likeliest


def _positive(prior: Tensor) -> Tensor:
    """Return a prior without zeros: one that estimates can be shrunk to."""
    return (prior + 1e-9) / (prior + 1e-9).sum()


def _check_options(options: RetargetOptions) -> None:
    if options.target is not None and options.counts is not None:
        raise ValueError("`target` and `counts` both set the target prior. Give one.")
    if options.match not in (None, "expected", "predicted"):
        raise ValueError(
            f"`match` must be 'expected' or 'predicted', got {options.match!r}."
        )
    if not 0 <= options.floor < 1:
        raise ValueError(f"`floor` must be in [0, 1), got {options.floor:g}.")
    if not options.smoothing >= 0:
        raise ValueError(f"`smoothing` must be >= 0, got {options.smoothing:g}.")
    if not options.logit_scale > 0:
        raise ValueError(f"`logit_scale` must be > 0, got {options.logit_scale:g}.")
