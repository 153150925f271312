"""MAP-EM: shrinks the estimate to a tilt, by as much as the data ask for."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tailshift.estimators.base import ESTIMATORS, CalibratorLike
from tailshift.estimators.likelihood import joint_scores, maximise_jointly
from tailshift.estimators.posteriors import Posteriors
from tailshift.estimators.tilt import TiltEstimator, joint_gamma, tilted
from tailshift.priors import VectorLike, as_prior, uniform

STRENGTHS = (0.0, 10.0, 30.0, 1e2, 3e2, 1e3, 3e3, 1e4, 1e6)
NUM_FOLDS = 5
CHOICE_TOLERANCE = 0.5  # standard errors that the choice may be worse than the best
CHOICE_ELEMENTS = 2**23  # of the posteriors that centre and strength are chosen by


class Choice(NamedTuple):
    """How each strength fared on the parts left out."""

    strength: float
    gain: float
    """Mean log-likelihood of left-out samples above that under the source prior."""
    gains: Tensor
    """The same for each strength."""


@ESTIMATORS.register("map_em")
class MAPEstimator(TiltEstimator):
    r"""EM with a Dirichlet prior around a tilt of the source prior.

    .. math:: \max_q \ell(q) + A \sum_c g_c \log q_c

    where :math:`\ell` is the likelihood of the held-out and the unlabelled samples
    together (:mod:`~tailshift.estimators.likelihood`), g the centre and A the strength
    in samples. The strength is chosen by five-fold cross-validation of that likelihood,
    which needs no label of the target: the largest strength that is within half a
    standard error of the best. So the estimate stays near the tilt if the target is a
    tilt, and leaves the tilt if the target is none.

    ``interval_`` comes from the same likelihood without the centre, so it covers
    whether or not the target is a tilt.

    Args:
        logit_prior: See :class:`~tailshift.estimators.base.PriorEstimator`.
        source_prior: Prior of the training data; see there.
        calibrator: Calibration of the logits; see there.
        center: ``"tilt"``, ``"uniform"``, ``"source"`` or a prior, shape (C,).
        strengths: The strengths A to choose from.
        seed: Seed for the folds.

    Attributes:
        strength_: The chosen strength A.
        center_: g, shape (C,).
        gamma_: γ of the tilt, by the same likelihood.
        gamma_interval_: 95 % interval of γ.
        choice_: How each strength fared.

    Example:
        >>> logits = torch.randn(3000, 3).mul(2) + torch.tensor([2.0, 1.0, 0.0])
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> estimator = MAPEstimator().fit(logits, labels)
        >>> target = torch.cat([logits[labels == 1][:400], logits[labels == 2][:100]])
        >>> estimator.estimate(target).round(decimals=1)
        tensor([0.0000, 0.8000, 0.2000], dtype=torch.float64)
    """

    def __init__(
        self,
        *,
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
        center: str | VectorLike = "tilt",
        strengths: Sequence[float] = STRENGTHS,
        seed: int = 0,
    ) -> None:
        super().__init__(
            logit_prior=logit_prior,
            source_prior=source_prior,
            calibrator=calibrator,
        )
        self.center = center
        self.strengths = strengths
        self.seed = seed

    def _estimate(self, samples: Posteriors) -> Tensor:
        super()._estimate(samples)
        some = self._pick_some(samples)
        center = self._make_center(self._joint_tilt(*some))
        self.center_ = center
        self.choice_ = self._choose(*some)
        self.strength_ = self.choice_.strength
        found = maximise_jointly(
            samples,
            self._held_out,
            start=center[:, None],
            denominator=self.denominator_[:, None],
            pseudo_counts=self.strength_ * center[:, None],
            tolerance=1e-5,
        )
        self._report(self.num_iter_ + found.num_iter, found.converged)
        # One sample of the source prior, so no class becomes impossible.
        N, q = samples.num_samples, found.x[: samples.num_classes, 0]
        return (N * q + self.source_prior_) / (N + 1)

    def _make_center(self, tilt: Tensor) -> Tensor:
        if isinstance(self.center, str):
            centers = {
                "tilt": tilt,
                "uniform": uniform(len(tilt)),
                "source": self.source_prior_,
            }
            if self.center not in centers:
                raise ValueError(
                    "`center` must be 'tilt', 'uniform', 'source' or a prior, "
                    f"but is {self.center!r}."
                )
            return centers[self.center]
        return as_prior(
            self.center, name="center", num_classes=len(tilt), positive=True
        )

    def _pick_some(self, samples: Posteriors) -> tuple[Tensor, Tensor]:
        """Return as many unlabelled and held-out posteriors as choices are made by.

        They are float32, which will do for choices.
        """
        generator = torch.Generator().manual_seed(self.seed)
        return (
            _some(samples, CHOICE_ELEMENTS, generator),
            _some(self._held_out, CHOICE_ELEMENTS, generator),
        )

    def _joint_tilt(self, target: Tensor, held_out: Tensor) -> Tensor:
        """Return the tilt that both samples call for."""
        if self._is_identified():
            parts = Posteriors.of(target), Posteriors.of(held_out)
            m = self.denominator_[:, None]
            self.gamma_ = joint_gamma(*parts, self.source_prior_, m, self.gamma_)
        return tilted(self.source_prior_, self.gamma_)

    def _choose(self, target: Tensor, held_out: Tensor) -> Choice:
        """Cross-validate every strength; all folds are columns of one iteration."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        num_folds = min(NUM_FOLDS, len(target), len(held_out))
        strengths = torch.tensor(sorted(self.strengths), dtype=torch.float64)
        if num_folds < 2 or len(strengths) == 1:
            return Choice(strengths[-1].item(), 0.0, torch.zeros(len(strengths)))
        folds = [_folds(len(s), num_folds, generator) for s in (target, held_out)]
        w = self._fit_folds(target, held_out, folds, strengths, num_folds)
        ratio = len(target) / len(held_out)
        scores = [
            joint_scores(_left_out(p, w, fold, num_folds), ratio, is_target=is_target)
            for p, fold, is_target in zip(
                (target, held_out), folds, (True, False), strict=True
            )
        ]
        return _largest_as_good(scores, strengths, ratio)

    def _fit_folds(
        self,
        target: Tensor,
        held_out: Tensor,
        folds: list[Tensor],
        strengths: Tensor,
        num_folds: int,
    ) -> Tensor:
        """Return q / m, shape (C, folds · strengths), each without its fold."""
        size = len(strengths)
        kept = [
            (fold[:, None] != torch.arange(num_folds)).repeat_interleave(size, dim=1)
            for fold in folds
        ]
        center = self.center_[:, None].repeat(1, num_folds * size)
        found = maximise_jointly(
            Posteriors.of(target),
            Posteriors.of(held_out),
            start=center,
            denominator=self.denominator_[:, None],
            pseudo_counts=center * strengths.repeat(num_folds),
            weights=kept[0].to(torch.uint8),
            held_out_weights=kept[1].to(torch.uint8),
            tolerance=1e-3,
            max_iter=200,
        )
        q, m = found.x.chunk(2)
        return q / m


def _some(samples: Posteriors, max_elements: int, generator: torch.Generator) -> Tensor:
    """Return posteriors of all samples, or of as many as ``max_elements`` allow."""
    most = max(NUM_FOLDS, max_elements // samples.num_classes)
    n = samples.num_samples
    order = torch.arange(n) if n <= most else torch.randperm(n, generator=generator)
    return samples.rows(order[:most], torch.float32)


def _folds(size: int, num_folds: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(size, generator=generator) % num_folds


def _left_out(p: Tensor, w: Tensor, folds: Tensor, num_folds: int) -> Tensor:
    """Return u of each sample by the fit that it was left out of, (N, strengths)."""
    u = (p @ w.to(p.dtype)).double().reshape(len(p), num_folds, -1)
    return u[torch.arange(len(p)), folds]


def _largest_as_good(scores: list[Tensor], strengths: Tensor, ratio: float) -> Choice:
    """Return the largest strength near the best one."""
    num_samples = len(scores[0])  # of the target: scores are counted per image of it
    means = sum(s.sum(dim=0) for s in scores) / num_samples
    assert isinstance(means, Tensor)
    best = means.argmax()
    # The gap to the best is taken sample by sample: both were scored on the same ones,
    # so that what they share does not count as noise. Folds of the target and of the
    # held-out data are independent, hence their variances add up.
    gaps = [s - s[:, best, None] for s in scores]
    variance = torch.stack([g.var(dim=0, correction=0) * len(g) for g in gaps]).sum(0)
    near = means >= means[best] - CHOICE_TOLERANCE * variance.sqrt() / num_samples
    chosen = int(near.nonzero().max())  # strengths are sorted
    # u = 1 everywhere is the source prior itself: what a gain is measured against.
    source = joint_scores(torch.ones(2), ratio, is_target=True)[0] + (
        joint_scores(torch.ones(2), ratio, is_target=False)[0] / ratio
    )
    gains = means - source
    return Choice(strengths[chosen].item(), gains[chosen].item(), gains)
