"""The prior that logits carry, measured on held-out data instead of assumed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift import checks
from tailshift.calibration import LOWEST
from tailshift.metrics.sample_scores import row_slices
from tailshift.priors import VectorLike, as_prior, counts_from_labels

TWO_SIDED_95 = 1.959963984540054
KAPPA_GUESS = 0.5  # between uniform and source; counts as little as one sample does
SPREADS = (0.03, 0.1, 0.3, 1.0)  # variances of the deviations that are tried
MAX_STEPS, STILL = 100, 1e-6
CLOSE = 1e-3  # deviations, in nats, that nobody tells apart


@dataclass(frozen=True, eq=False)
class CarriedPrior:
    """The prior that logits carry, as :func:`measure_logit_prior` measures it."""

    prior: Tensor
    """The prior to take off in compensation, float64, shape (C,)."""
    kappa: float
    """The tilt κ: logits carry about :math:`p_s^κ`, all of the source prior at 1."""
    interval: tuple[float, float]
    """95 % interval of κ."""
    temperature: float
    """What divides the logits to make them calibrated; it does not change κ."""
    spread: float
    """Standard deviation of what classes carry beside the tilt; 0 if that is noise."""


def declared_kappa(logit_prior: VectorLike, source_prior: VectorLike) -> float:
    r"""Return the κ whose :math:`p_s^\kappa` is nearest to a prior, by least squares.

    Args:
        logit_prior: The prior that logits are said to carry, shape (C,).
        source_prior: :math:`p_s`, shape (C,). Classes without any are skipped.

    Example:
        >>> declared_kappa([0.5, 0.5], [0.8, 0.2])
        0.0
    """
    p_s = as_prior(source_prior, name="source_prior")
    p = as_prior(logit_prior, name="logit_prior", num_classes=len(p_s))
    known = (p_s > 0) & (p > 0)
    x, log_p = _centred_log(p_s[known]), _centred_log(p[known])
    return float(x @ log_p / (x @ x).clamp_min(1e-12))


def measure_logit_prior(
    logits: checks.ArrayLike,
    labels: checks.ArrayLike,
    source_prior: VectorLike,
    *,
    deviations: bool = True,
) -> CarriedPrior:
    r"""Measure the prior that a model's logits carry on labelled held-out data.

    It is what must be taken off so that the logits, given the held-out class shares
    :math:`q`, tell the held-out labels best:

    .. math:: \max_{a, \kappa, d} \sum_i \log \mathrm{softmax}\bigl(
        a\,(f(x_i) - \kappa \log p_s) - d + \log q\bigr)[y_i]
        - \sum_c \frac{d_c^2}{2 \tau^2}

    At the maximum the mean posterior of a class is its share. The scale :math:`a` keeps
    logits that are too sure from passing for a tilt. A class's own deviation
    :math:`d_c` is shrunk to 0 the more, the fewer samples the class has; how much, the
    evidence for :math:`\tau` decides. The held-out mix need not be that of training.

    Args:
        logits: :math:`f` of data that was not trained on, shape (N, C).
        labels: :math:`y`, shape (N,).
        source_prior: :math:`p_s`, the training set's, shape (C,). A class without any
            carries nothing.
        deviations: Whether classes may deviate from the tilt. Without them the prior is
            :math:`p_s^\kappa`, and found several times as fast.

    Example:
        >>> p_s = torch.tensor([0.6, 0.3, 0.1])
        >>> labels = torch.multinomial(p_s, 4000, replacement=True)
        >>> noise = torch.randn(4000, 3)
        >>> logits = torch.eye(3)[labels] + noise + 0.5 * p_s.log()
        >>> found = measure_logit_prior(logits, labels, p_s)
        >>> round(found.kappa, 1), found.interval[0] < 0.5 < found.interval[1]
        (0.5, True)
    """
    f = checks.check_logits(checks.as_tensor(logits, "logits").cpu())
    y = checks.check_sample_labels(checks.as_tensor(labels, "labels").cpu(), f)
    p_s = as_prior(source_prior, name="source_prior", num_classes=f.shape[1])
    known = p_s > 0
    rows, positions = known[y], known.cumsum(0) - 1
    held_out = _HeldOut(f[rows][:, known], positions[y[rows]], p_s[known])
    tilt = held_out.fit_tilt(_Fit.start(int(known.sum())))
    found, spread = held_out.fit_deviations(tilt) if deviations else (tilt, 0.0)
    width = TWO_SIDED_95 * held_out.kappa_error(tilt)
    prior = torch.zeros_like(p_s)
    prior[known] = (found.kappa * held_out.log_p_s + found.d / found.a).softmax(0)
    return CarriedPrior(
        prior, tilt.kappa, (tilt.kappa - width, tilt.kappa + width), 1 / tilt.a, spread
    )


def _centred_log(prior: Tensor) -> Tensor:
    """Return log probabilities of mean 0, which κ turns without moving them."""
    log_p = prior.double().log()
    return log_p - log_p.mean()


class _Fit(NamedTuple):
    """Where the search is."""

    tilt: Tensor
    """log a and κ, shape (2,)."""
    d: Tensor
    """Deviations, shape (C,)."""

    @classmethod
    def start(cls, num_classes: int) -> "_Fit":
        tilt = torch.tensor([0.0, KAPPA_GUESS], dtype=torch.float64)
        return cls(tilt, torch.zeros(num_classes, dtype=torch.float64))

    @property
    def a(self) -> float:
        return math.exp(self.tilt[0])

    @property
    def kappa(self) -> float:
        return self.tilt[1].item()


class _HeldOut:
    """Held-out logits and labels, read block by block."""

    def __init__(self, f: Tensor, y: Tensor, p_s: Tensor) -> None:
        self.f, self.y = f, y
        self.log_p_s = _centred_log(p_s)  # (C,)
        self.n = counts_from_labels(y, f.shape[1]).double()  # (C,)
        self.log_q = (self.n / self.n.sum()).log()  # −inf if a class is not there

    def blocks(self, at: _Fit) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield a (f − κ log p_s), the log posteriors made of it, and labels."""
        for rows in row_slices(len(self.f), self.f.shape[1]):
            f = self.f[rows].double()
            f = (f - f.amax(dim=1, keepdim=True)).clamp_min(LOWEST)
            z = at.a * (f - at.kappa * self.log_p_s)
            yield z, (z - at.d + self.log_q).log_softmax(dim=1), self.y[rows]

    def loss(self, at: _Fit) -> float:
        """Return the negative log-likelihood, and what the guesses add to it."""
        away = at.tilt - _Fit.start(0).tilt
        total = float(away @ away) / 2
        return total + sum(
            F.nll_loss(log_p, y, reduction="sum").item()
            for _, log_p, y in self.blocks(at)
        )

    def slopes(self, at: _Fit) -> tuple[Tensor, Tensor]:
        """Return each sample's score (N, 2) in log a and κ, and the information (2, 2).

        The information is that of the model, so it is never negative.
        """
        scores = []
        information = torch.eye(2, dtype=torch.float64)  # of the guesses
        for z, log_p, y in self.blocks(at):
            p = log_p.exp()
            u = torch.stack([z, -at.a * self.log_p_s.expand_as(z)])  # dz, (2, n, C)
            mean = (u * p).sum(2)  # (2, n)
            scores.append((u[:, torch.arange(len(y)), y] - mean).T)
            information += (u * p).flatten(1) @ u.flatten(1).T - mean @ mean.T
        return torch.cat(scores), information

    def fit_tilt(self, at: _Fit) -> _Fit:
        """Return the likeliest log a and κ, by Newton's steps, halved until they help.

        The deviations stay.
        """
        guess, loss = _Fit.start(0).tilt, self.loss(at)
        for _ in range(MAX_STEPS):
            scores, information = self.slopes(at)
            step = torch.linalg.solve(information, scores.sum(0) - (at.tilt - guess))
            while (new := self.loss(at._replace(tilt=at.tilt + step))) > loss:
                step = step / 2
                if step.abs().max() < STILL:
                    return at
            at, loss = at._replace(tilt=at.tilt + step), new
            if step.abs().max() < STILL:
                break
        return at

    def kappa_error(self, at: _Fit) -> float:
        r"""Return the standard error of κ: :math:`H^{-1} V H^{-1}`.

        As the shares q are those of the very samples, V counts how scores vary within
        a class, not between classes. A single sample of a class tells nothing of that,
        and its whole score counts.
        """
        scores, information = self.slopes(at)
        sums = torch.zeros(len(self.n), 2, dtype=torch.float64)
        means = sums.index_add(0, self.y, scores) / self.n[:, None].clamp_min(1)
        n = self.n[self.y][:, None]  # (N, 1)
        within = (scores - means[self.y]) * (n / (n - 1).clamp_min(1)).sqrt()
        within = torch.where(n > 1, within, scores)
        of_guesses = torch.eye(2, dtype=torch.float64)
        inverse = torch.linalg.inv(information)
        variance = inverse @ (within.T @ within + of_guesses) @ inverse
        return float(variance[1, 1].sqrt())

    def fit_deviations(self, tilt: _Fit) -> tuple[_Fit, float]:
        """Return the fit with the likeliest spread of deviations, and that spread.

        The evidence is Laplace's, with the diagonal of the curvature alone: never more
        than with all of it, so that a spread is rather too small than too large.
        """
        best, spread, evidence = tilt, 0.0, -self.loss(tilt)
        for variance in SPREADS:
            at = self._fit_both(best, variance)
            total, squares = self._sums(at)
            new = -self.loss(at) - float(at.d @ at.d) / (2 * variance)
            new -= float(torch.log1p(variance * (total - squares)).sum()) / 2
            if new <= evidence:  # larger ones have still less
                break
            best, spread, evidence = at, math.sqrt(variance), new
        return best, spread

    def _fit_both(self, at: _Fit, variance: float) -> _Fit:
        """Return the likeliest deviations and tilt, fitted in turn until both stay."""
        for _ in range(MAX_STEPS):
            before = at
            at = self.fit_tilt(self._fit_d(at, variance))
            if (at.d - before.d).abs().max() < 10 * CLOSE:
                break
        return at

    def _fit_d(self, at: _Fit, variance: float) -> _Fit:
        """Return the likeliest deviations under a spread; the tilt stays."""
        for _ in range(MAX_STEPS):
            total, _ = self._sums(at)
            # The whole of `total` bounds the curvature, so no step goes too far.
            step = (total - self.n - at.d / variance) / (total + 1 / variance)
            at = at._replace(d=at.d + step)
            if step.abs().max() < CLOSE:
                break
        return at

    def _sums(self, at: _Fit) -> tuple[Tensor, Tensor]:
        """Return the sums over samples of the posteriors and their squares, (C,)."""
        total, squares = torch.zeros_like(at.d), torch.zeros_like(at.d)
        for _, log_p, _ in self.blocks(at):
            p = log_p.exp()
            total += p.sum(0)
            squares += p.square().sum(0)
        return total, squares
