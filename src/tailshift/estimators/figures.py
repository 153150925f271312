r"""How well a classification rule will do on the target, in every replicate.

Under label shift a score :math:`s(x, y)` has the target mean :math:`\sum_c q_c S_c`
with its class means :math:`S_c`, which are the same in source and target. A class mean
combines held-out labels and posteriors:

.. math:: S_c = \frac{\sum_{i: y_i = c} v_i\, s(x_i, c) + k\, \tilde S_c}
                     {\sum_{i: y_i = c} v_i + k}

where :math:`\tilde S_c` is the mean under posteriors of class c. The number k of labels
that posteriors are worth is estimated: it is small if labels and posteriors disagree.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.calibration import LOWEST
from tailshift.estimators.replicates import Replicate
from tailshift.metrics.calibration_error import NUM_BINS, bin_of, equal_width_edges

WORTHS = torch.tensor([2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]).double()
"""Numbers of labels that posteriors may be worth."""
TYPICAL_WORTH = 20.0  # middle of the prior of that number, and its spread in log units
WORTH_SPREAD = 1.0
SHIFT_PRECISION = 4.0  # prior precision of the log-odds that posteriors are off by
SHIFT_PASSES = 4


class Rule(NamedTuple):
    """What a rule predicts, and how its held-out predictions fare."""

    predicted: Tensor
    """Predicted class of the unlabelled samples, shape (N,)."""
    confidence: Tensor
    """Their probabilities, shape (N,)."""
    loss: Tensor
    """Minus the log probability of each class, shape (N, C)."""
    bins: Tensor
    """One-hot confidence bin, shape (N, M)."""
    held_out_predicted: Tensor
    """Predicted class of the held-out samples in the replicates, shape (n,)."""
    held_out_loss: Tensor
    """Minus their log probability of each class, shape (n, C)."""
    labels: Tensor
    """Labels of all held-out samples, shape (n',)."""
    hits: Tensor
    """Whether each of them is classified correctly, shape (n',)."""
    label_loss: Tensor
    """Minus the log probability of each one's label, shape (n',)."""

    @classmethod
    def of(
        cls, log_p: Tensor, held_out_log_p: Tensor, labels: Tensor, rows: Tensor
    ) -> "Rule":
        """Return the rule that predicts the most probable class.

        Args:
            log_p: Log probabilities of the unlabelled samples, shape (N, C).
            held_out_log_p: Log probabilities of all held-out samples, shape (n', C).
            labels: Their labels, shape (n',).
            rows: Which of them are in the replicates, shape (n,).
        """
        # A class that a prior excludes has log 0; products with 0 must stay 0.
        log_p, log_p_h = (
            part.log_softmax(dim=1).clamp_min(LOWEST).float()
            for part in (log_p, held_out_log_p)
        )
        top, predicted = log_p.max(dim=1)
        edges = equal_width_edges(NUM_BINS, torch.float32)
        predicted_h = log_p_h.argmax(dim=1)
        return cls(
            predicted=predicted,
            confidence=top.exp(),
            loss=-log_p,
            bins=F.one_hot(bin_of(top.exp(), edges), NUM_BINS).float(),
            held_out_predicted=predicted_h[rows],
            held_out_loss=-log_p_h[rows],
            labels=labels,
            hits=predicted_h == labels,
            label_loss=-log_p_h.gather(1, labels[:, None])[:, 0],
        )

    def extended(self, others: Sequence["Rule"]) -> "Rule":
        """Return this rule with the held-out samples of others appended."""
        per_sample = (
            "held_out_predicted",
            "held_out_loss",
            "labels",
            "hits",
            "label_loss",
        )
        parts = (self, *others)
        joined = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name in per_sample
        }
        return self._replace(**joined)


class Means(NamedTuple):
    """Class means of a rule under posteriors, each of shape (B, C)."""

    recall: Tensor
    loss: Tensor


def posterior_means(replicate: Replicate, r: Tensor, rule: Rule) -> Means:
    r"""Return :math:`\tilde S_c` of recall and loss.

    Args:
        replicate: B replicates.
        r: Their responsibilities, shape (B, N, C).
        rule: The rule.
    """
    sums = []
    for p, v, predicted, loss in (
        (r, replicate.weights, rule.predicted, rule.loss),
        (
            replicate.p_held_out,
            replicate.held_out_weights,
            rule.held_out_predicted,
            rule.held_out_loss,
        ),
    ):
        own = p.gather(2, predicted.expand(len(p), -1)[:, :, None])[:, :, 0]
        mass = torch.bmm(v[:, None], p)[:, 0]  # (B, C)
        hits = torch.zeros_like(mass).index_add_(1, predicted, v * own)
        losses = torch.bmm(v[:, None], p * loss)[:, 0]
        sums.append(torch.stack([mass, hits, losses]).double())
    mass, hits, losses = sums[0] + sums[1]
    mass = mass.clamp_min(1e-30)
    return Means((hits / mass).clamp(0, 1), losses / mass)


class LabelSums(NamedTuple):
    """Weighted sums over held-out labels, each of shape (B, C)."""

    counts: Tensor
    hits: Tensor
    losses: Tensor

    @classmethod
    def of(cls, rule: Rule, weights: Tensor) -> "LabelSums":
        """Return the sums for weights (B, n') of the held-out samples."""
        values = torch.stack(
            [torch.ones_like(rule.label_loss), rule.hits.float(), rule.label_loss]
        )
        num_classes = rule.loss.shape[1]
        sums = torch.zeros(3, len(weights), num_classes)
        sums.index_add_(2, rule.labels, values[:, None] * weights)
        return cls(*sums.double())


def agree_with_labels(means: Means, sums: LabelSums) -> Means:
    r"""Return class means whose recalls are shifted to agree with the labels.

    No calibrator fits exactly, and what is left raises or lowers all recalls alike. So
    all log-odds move by :math:`\delta`, found by Newton steps with a normal prior. A
    class counts as its labels do if posteriors are worth ``TYPICAL_WORTH`` of them:
    without that, frequent classes alone would decide.

    Args:
        means: By posteriors.
        sums: Of labels.
    """
    log_odds = means.recall.clamp(1e-3, 1 - 1e-3).logit()
    weight = TYPICAL_WORTH / (sums.counts + TYPICAL_WORTH)
    delta = torch.zeros_like(log_odds[:, :1])
    for _ in range(SHIFT_PASSES):
        S = (log_odds + delta).sigmoid()
        gradient = (weight * (sums.hits - sums.counts * S)).sum(dim=1, keepdim=True)
        curvature = (weight * sums.counts * S * (1 - S)).sum(dim=1, keepdim=True)
        step = gradient - SHIFT_PRECISION * delta
        delta = delta + (step / (curvature + SHIFT_PRECISION)).clamp(-1, 1)
    return means._replace(recall=(log_odds + delta).sigmoid())


def worth_of_posteriors(posterior_recall: Tensor, sums: LabelSums) -> Tensor:
    """Return the probability of each of ``WORTHS``, by beta-binomial likelihood.

    Args:
        posterior_recall: Recall of each class by posteriors, shape (C,).
        sums: Label sums without weights, shape (1, C).
    """
    S = posterior_recall.clamp(1e-3, 1 - 1e-3)[:, None]
    hits, misses = sums.hits[0, :, None], (sums.counts - sums.hits)[0, :, None]
    a, b = WORTHS * S, WORTHS * (1 - S)
    evidence = (_log_beta(a + hits, b + misses) - _log_beta(a, b)).sum(dim=0)
    away = (WORTHS.log() - math.log(TYPICAL_WORTH)) / WORTH_SPREAD
    return (evidence - away.square() / 2).softmax(dim=0)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def combine_means(
    means: Means, sums: LabelSums, worth: Tensor, rng: np.random.Generator | None
) -> Means:
    """Return class means that combine posteriors and labels, each (B, C).

    Args:
        means: By posteriors.
        sums: Of labels, with the weights of the replicates.
        worth: k of each replicate, shape (B,).
        rng: Draws the weights of the k labels; without it they are not random. With
            exponential weights of labels a recall has a beta distribution.
    """
    right, wrong = worth[:, None] * means.recall, worth[:, None] * (1 - means.recall)
    if rng is not None:
        right, wrong = (
            torch.from_numpy(rng.standard_gamma(part.clamp_min(1e-3).numpy()))
            for part in (right, wrong)
        )
    k = right + wrong
    total = sums.counts + k
    return Means((sums.hits + right) / total, (sums.losses + k * means.loss) / total)


def calibration_error(
    replicate: Replicate, r: Tensor, rule: Rule, correction: Tensor
) -> Tensor:
    """Return the expected calibration error, shape (B,).

    Args:
        replicate: B replicates.
        r: Their responsibilities, shape (B, N, C).
        rule: The rule.
        correction: Recall of each class over its recall by posteriors, shape (B, C).
    """
    predicted = rule.predicted.expand(len(r), -1)
    own = r.gather(2, predicted[:, :, None])[:, :, 0]
    own = (own * correction.float().gather(1, predicted)).clamp_max(1)
    v = replicate.weights
    gap = (v * (own - rule.confidence)) @ rule.bins  # (B, M)
    return gap.abs().sum(dim=1).double() / v.sum(dim=1)
