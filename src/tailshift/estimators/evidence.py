"""What held-out labels and unlabelled samples say about a target, computed once.

Estimates with intervals, the decision to adapt and certificates all read this evidence,
so they rest on the same replicates, the same calibrator and the same prior.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tailshift.compensation import log_prior_ratio
from tailshift.estimators import figures
from tailshift.estimators.assumption import AssumptionTest, novelty
from tailshift.estimators.base import ESTIMATORS, PriorEstimator
from tailshift.estimators.figures import Rule
from tailshift.estimators.known_classes import (
    ClassList,
    known_classes,
)
from tailshift.estimators.replicates import Replicate, Replicates, prior_interval
from tailshift.estimators.retargeting import Retargeting
from tailshift.predictions import Predictions
from tailshift.priors import from_counts

Status: TypeAlias = Literal["supported", "indicative", "refused"]
"""``"supported"``: intervals have their coverage. ``"indicative"``: too little evidence
for that. ``"refused"``: the label-shift assumption does not hold."""

MIN_OCCURRENCES = 3.0  # unlabelled samples of a class that surely occurs
MIN_TARGET = 50  # distinct unlabelled samples
MIN_HELD_OUT = 100  # labels
MIN_INFORMED = 0.55  # share of the target that labels inform
MIN_TESTABLE = 0.25  # of that share, to test the label-shift assumption
MIN_TESTED = 20  # distinct unlabelled samples, to test the assumption
LABELS_FOR_HALF = 10.0  # a class with as many labels is informed by half
REPEATED_HELD_OUT = (
    0.02  # share of repeated held-out rows of a model that has few scores
)
PREDICTION_ELEMENTS = 2**22  # held-out log probabilities computed at a time


def named_estimator(held_out: Predictions, name: str = "map_em") -> PriorEstimator:
    """Return an estimator by its name, with the priors that are known."""
    counts = held_out.source_counts
    source = None if counts is None else from_counts(counts)
    kind = ESTIMATORS.get(name)
    return kind(logit_prior=held_out.logit_prior, source_prior=source)


def distinct_rows(logits: Tensor, held_out: Tensor) -> Tensor:
    """Return the positions of distinct samples, in ascending order.

    A sample that was sent twice is not evidence twice. Rows count as they are if
    held-out rows repeat too: then different samples often get the same scores, as from
    a decision tree.

    Args:
        logits: Unlabelled logits, shape (N, C).
        held_out: Held-out logits of the same model, shape (n, C).

    Example:
        >>> held_out = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> distinct_rows(torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 3.0]]), held_out)
        tensor([0, 2])
    """
    if 1 - len(_first_of_each(held_out)) / len(held_out) > REPEATED_HELD_OUT:
        return torch.arange(len(logits))
    return _first_of_each(logits)


def _first_of_each(rows: Tensor) -> Tensor:
    values = np.ascontiguousarray(rows.numpy())
    whole = values.view(np.dtype((np.void, values.dtype.itemsize * values.shape[1])))
    _, first = np.unique(whole.ravel(), return_index=True)
    return torch.from_numpy(np.sort(first))


class FigureDraws(NamedTuple):
    """Figures of one rule: the first row is what was found, B replicates follow."""

    accuracy: Tensor
    """Shape (1 + B,)."""
    macro_recall: Tensor
    ece: Tensor
    nll: Tensor
    recall: Tensor
    """Shape (1 + B, C)."""


@dataclass(frozen=True, eq=False)
class Findings:
    """What one pass over the replicates gives.

    Attributes:
        draws: Figures of each rule.
        prior: Target priors of the replicates, by likelihood alone, shape (B, C).
        p_value: P-value of the label-shift assumption; NaN if too few labels inform
            the target to test it.
    """

    draws: tuple[FigureDraws, ...]
    prior: Tensor
    p_value: float


class _Pass(NamedTuple):
    """B replicates, and what figures are computed with."""

    replicate: Replicate
    prior: Tensor
    """Target prior of means over the target, shape (B, C); entries may be negative."""
    label_weights: Tensor
    """Of all held-out labels, shape (B, n')."""
    rng: np.random.Generator | None
    """FigureDraws what else is random; None for what was found."""


class Evidence:
    """Held-out labels and unlabelled samples of one target.

    Args:
        held_out: Labelled source data that the model was not trained on.
        logits: Logits of the target, shape (N, C).
        classes: The classes that can occur; by default all, or those that labels
            support (:func:`~tailshift.estimators.known_classes.known_classes`).
        floor: Share of the target that all other classes keep together.
        target_prior: The target prior if it is known, shape (C,).
        estimator: Estimator of the target prior, which is not changed, or its name.
        features: Features of the held-out and of the unlabelled samples, for the test
            of the assumption.
        num_replicates: Number of replicates.
        seed: Seed of the replicates.
        announce: Called with each phase.

    Attributes:
        known: The K classes that can occur. All else here is of these only.
        estimator: The fitted estimator.
        prior: Target prior, given or estimated, shape (K,).
        num_repeated: How many unlabelled rows repeat another one.
    """

    def __init__(
        self,
        held_out: Predictions,
        logits: Tensor,
        *,
        classes: ClassList | None = None,
        floor: float = 0.0,
        target_prior: Tensor | None = None,
        estimator: PriorEstimator | str = "map_em",
        features: tuple[Tensor, Tensor] | None = None,
        num_replicates: int,
        seed: int = 0,
        announce: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self.known = known_classes(classes, held_out, floor=floor)
        self._logit_prior = held_out.logit_prior  # of all classes
        rows = distinct_rows(logits, held_out.logits)
        self.num_repeated = len(logits) - len(rows)
        self.logits = self.known.logits(logits[rows])
        self.held_out = held_out = self.known.predictions(held_out)
        if target_prior is not None:
            target_prior = self.known.prior(target_prior)
        announce(f"calibrating on {len(held_out.labels):,} held-out samples")
        if isinstance(estimator, str):
            made = named_estimator(held_out, estimator)
        else:
            made = self._of_known(estimator)
        self.estimator = made.fit(held_out.logits, held_out.labels)
        N, C = self.logits.shape
        announce(f"estimating {C:,} class probabilities from {N:,} samples")
        found = self.estimator.estimate(self.logits)
        self.prior = found if target_prior is None else target_prior
        self.is_known = target_prior is not None
        made_replicates = self.estimator.replicates_
        self.replicates = Replicates(
            target=made_replicates.target,
            held_out=made_replicates.held_out,
            labels=made_replicates.labels,
            prior=self.prior,
            is_known=self.is_known,
            ridge=made_replicates.ridge,
            num_replicates=num_replicates,
            seed=seed,
        )
        self._features = None
        if features is not None:
            self._features = features[0], features[1][rows]

    def _of_known(self, estimator: PriorEstimator) -> PriorEstimator:
        """Return a copy of an estimator whose priors are of the known classes."""
        made = copy.copy(estimator)
        if not self.known.is_everything:
            for name in ("logit_prior", "source_prior"):
                given = getattr(made, name)
                if given is not None:
                    setattr(made, name, self.known.prior(torch.as_tensor(given)))
        return made

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.logits.shape[1]

    @property
    def counts(self) -> Tensor:
        """Held-out labels of each class, shape (C,)."""
        return self.estimator.counts_

    def rule(self, prior: Tensor, *, is_calibrated: bool) -> Rule:
        """Return the rule that re-targets the model to a prior.

        Args:
            prior: Target prior, shape (C,).
            is_calibrated: Whether logits are calibrated first.
        """
        target, held_out = self.replicates.target, self.replicates.held_out
        from_prior = (
            self.estimator.held_out_prior_
            if is_calibrated
            else self.estimator.logit_prior_
        )
        shift = log_prior_ratio(from_prior, prior, num_classes=self.num_classes)
        f_h, y = self.held_out.logits, self.held_out.labels

        def log_p(f: Tensor) -> Tensor:
            known = self.estimator.posterior(f).log() if is_calibrated else f.double()
            return known + shift

        unlabelled = target.log_p.double() + shift
        if not is_calibrated:
            unlabelled = self.logits[target.rows].double() + shift
        rows = max(1, PREDICTION_ELEMENTS // self.num_classes)
        parts = [
            Rule.of(
                unlabelled[:1] if start else unlabelled,
                log_p(f_h[start : start + rows]),
                y[start : start + rows],
                _inside(held_out.rows, start, rows),
            )
            for start in range(0, len(y), rows)
        ]
        return parts[0].extended(parts[1:])

    def retargeting(self, prior: Tensor, *, is_calibrated: bool) -> Retargeting:
        """Return what maps new logits to log probabilities under a prior."""
        made = self.estimator
        calibrator = made.calibrator_ if is_calibrated else None
        return Retargeting(
            self._all_logit_prior(),
            self.expand_prior(prior),
            made.held_out_prior_,
            calibrator,
            self.known,
        )

    def _all_logit_prior(self) -> Tensor:
        """Return the prior of the logits of all classes, shape (C,)."""
        if self._logit_prior is not None:
            return self._logit_prior
        C, p = self.known.num_classes, self.estimator.logit_prior_
        return self.known.expand(p * len(p) / C, 1 / C)

    def prefixed(self, reason: str) -> str:
        """Return a sentence after what restricts the classes, if anything does."""
        return f"{self.known.reason} {reason}" if self.known.reason else reason

    def prior_interval(self, draws: Tensor) -> Tensor:
        """Return the 95 % interval of the target prior for all classes, (2, C).

        Args:
            draws: Target priors of the replicates, shape (B, K).
        """
        found = prior_interval(draws, self.prior, len(self.logits))
        return self.known.expand(found, 0.0)

    def expand_prior(self, prior: Tensor) -> Tensor:
        """Return a prior (K,) for all classes, shape (C,)."""
        return self.known.expand_prior(prior, torch.ones(self.known.num_classes))

    def examine(
        self, rules: Sequence[Rule], *, with_losses: bool, alpha: float
    ) -> Findings:
        """Return the figures of rules over the replicates, and the test's p-value.

        Args:
            rules: The rules.
            with_losses: Whether to compute calibration error and NLL; NaN otherwise.
            alpha: Size of the test of the assumption. If the replicates are too few to
                reject at this size, more are drawn for the test.
        """
        center = self.replicates.center(self.prior)
        free = self.replicates.center().prior  # of the likelihood, without shrinkage
        rng = np.random.default_rng(self.replicates.seed)
        passes = [_Pass(center, self.prior[None], self._label_weights(center), None)]
        worths = [self._worth(passes[0], rule) for rule in rules]
        test = self._assumption_test()
        draws: list[list[FigureDraws]] = [[] for _ in rules]
        priors = []
        for now in self._passes(passes, free, rng):
            r = now.replicate.responsibilities
            for rule, worth, row in zip(rules, worths, draws, strict=True):
                row.append(self._draws(now, r, rule, worth, with_losses))
            if now.rng is not None:
                test.add(now.replicate)
                priors.append(now.replicate.prior)
        joined = tuple(
            FigureDraws(*map(torch.cat, zip(*parts, strict=True))) for parts in draws
        )
        return Findings(joined, torch.cat(priors), self._p_value(test, alpha))

    def _p_value(self, test: AssumptionTest, alpha: float) -> float:
        """Return the test's p-value, with more replicates if these are too few."""
        # Held-out samples cannot stand for a target of classes without labels.
        informed = self._informed(self.replicates.labels)
        if informed < MIN_TESTABLE or len(self.logits) < MIN_TESTED:
            return math.nan
        p_value, made = test.p_value(), self.replicates
        lowest = 1 / (made.num_replicates + 1)
        if p_value > lowest or lowest <= alpha or alpha == 0:
            return p_value
        missing = math.ceil(1 / alpha) - 1 - made.num_replicates
        for more in replace(made, num_replicates=missing, seed=made.seed + 1):
            test.add(more)
        return test.p_value()

    def _passes(
        self, first: list["_Pass"], free: Tensor, rng: np.random.Generator
    ) -> Iterator["_Pass"]:
        yield from first
        for replicate in self.replicates:
            # The estimate is shrunk, the priors of replicates are not. By turns they
            # are taken as they are, and moved to vary around the estimate.
            q = replicate.prior.clone()
            q[::2] += self.prior - free
            yield _Pass(replicate, q, self._label_weights(replicate, rng), rng)

    def _worth(self, center: "_Pass", rule: Rule) -> Tensor:
        """Return the probability of each number of labels that posteriors are worth."""
        r = center.replicate.responsibilities
        means = figures.posterior_means(center.replicate, r, rule)
        sums = figures.LabelSums.of(rule, center.label_weights)
        means = figures.agree_with_labels(means, sums)
        return figures.worth_of_posteriors(means.recall[0], sums)

    def _draws(
        self, now: "_Pass", r: Tensor, rule: Rule, worth: Tensor, with_losses: bool
    ) -> FigureDraws:
        rng = now.rng
        k = (worth @ figures.WORTHS.log()).exp()[None]
        if rng is not None:
            drawn = rng.choice(len(worth), len(r), p=worth.numpy())
            k = figures.WORTHS[torch.from_numpy(drawn)]
        by_posteriors = figures.posterior_means(now.replicate, r, rule)
        sums = figures.LabelSums.of(rule, now.label_weights)
        means = figures.agree_with_labels(by_posteriors, sums)
        means = figures.combine_means(means, sums, k, rng)
        occurs = self._occurrence(now.replicate.prior, rng)
        macro = (occurs * means.recall).sum(dim=1) / occurs.sum(dim=1)
        ece = nll = torch.full((len(r),), math.nan, dtype=torch.float64)
        if with_losses:
            ratio = means.recall / by_posteriors.recall.clamp_min(1e-9)
            ece = figures.calibration_error(now.replicate, r, rule, ratio)
            nll = (now.prior * means.loss).sum(dim=1)
        accuracy = (now.prior * means.recall).sum(dim=1)
        return FigureDraws(accuracy, macro, ece, nll, means.recall)

    def _occurrence(self, prior: Tensor, rng: np.random.Generator | None) -> Tensor:
        """Return which classes macro figures are over, shape (B, C).

        Nothing tells an absent class from one of less than a few samples. So replicates
        are by turns over all classes, and over those that surely occur.
        """
        if self.is_known:
            return (self.prior > 0).double().expand_as(prior)
        expected = len(self.logits) * prior
        if rng is None:
            return 1 - (-expected).exp()
        surely = expected >= MIN_OCCURRENCES
        everywhere = torch.from_numpy(rng.random(len(prior)) < 0.5)
        everywhere |= ~surely.any(dim=1)
        return (surely | everywhere[:, None]).double()

    def _label_weights(
        self, replicate: Replicate, rng: np.random.Generator | None = None
    ) -> Tensor:
        """Return weights of all held-out labels, shape (B, n')."""
        v = replicate.held_out_weights
        shape = len(v), len(self.held_out.labels)
        if rng is None or v.shape == shape:
            return v if v.shape == shape else v.new_ones(shape)
        return torch.from_numpy(rng.standard_exponential(shape)).float()

    def _assumption_test(self) -> AssumptionTest:
        target, held_out = self.replicates.target, self.replicates.held_out
        near = None
        if self._features is not None:
            of_known, of_new = self._features
            near = novelty(of_new[target.rows], of_known[held_out.rows])
        return AssumptionTest(
            self.replicates,
            self.logits[target.rows],
            self.held_out.logits[held_out.rows],
            near,
        )

    def shortage(self) -> str:
        """Return what there is too little of, or nothing."""
        n, N = len(self.held_out.labels), len(self.logits)
        if N < MIN_TARGET:
            return f"only {N} distinct unlabelled samples, fewer than {MIN_TARGET}"
        if n < MIN_HELD_OUT:
            return f"only {n} held-out labels, fewer than {MIN_HELD_OUT}"
        if self._informed(self.held_out.labels) < MIN_INFORMED:
            enough = math.ceil(LABELS_FOR_HALF * MIN_INFORMED / (1 - MIN_INFORMED))
            few = int((self.counts < enough).sum())
            return (
                f"{few} of {self.num_classes} classes have fewer than {enough} "
                "held-out labels, and the target consists mostly of such classes"
            )
        return ""

    def _informed(self, labels: Tensor) -> float:
        """Return the share of the target whose recalls labels inform, in [0, 1]."""
        n = torch.bincount(labels, minlength=self.num_classes).double()
        return float((self.prior * n / (n + LABELS_FOR_HALF)).sum())


def _inside(rows: Tensor, start: int, size: int) -> Tensor:
    """Return the rows in a block, counted from its start."""
    return rows[(rows >= start) & (rows < start + size)] - start
