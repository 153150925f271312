r"""Replicates: the one source of uncertainty of estimates, decisions and certificates.

A replicate is a draw of the weighted-likelihood bootstrap [newton1994]: every held-out
sample, every unlabelled sample and every penalty of the calibrator is given a random
weight of mean 1. The calibrator, the mean posterior and the target prior are fitted
again under these weights. So one set of draws contains the uncertainty of all three.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.calibration import LOWEST
from tailshift.estimators.likelihood import TINY, Step, normalised, squarem
from tailshift.estimators.posteriors import Posteriors

NUM_REPLICATES = 200
MARGIN = 1.25  # of the ends of an interval, for what replicates cannot know
SAMPLE_ELEMENTS = 2**20  # log posteriors of either sample that replicates are made of
ELEMENTS_AT_ONCE = 2**21  # posteriors of the replicates computed side by side
SCALE_PRECISION = 1.0  # of the mean log scale, in units of one sample
RIDGE = 30.0  # prior precision of a class's own scale and bias, in units of one sample
MAX_SCALE_STEP = 0.7  # of a log scale in a replicate
MAX_DENSE_CLASSES = 1200  # above, the curvature couples only parameters of one class
MAX_CORRECTED_CLASSES = 200  # above, labels do not correct priors: it would be slow
CORRECTION_LABELS = 10.0  # per class: labels that posteriors are worth in a correction
CORRECTION_PASSES = 30
PRIOR_TOLERANCE, PRIOR_PASSES = 3e-3, 30  # of the prior fitted in a replicate


class Sample(NamedTuple):
    """Rows of log posteriors, each of which stands for ``worth`` samples."""

    log_p: Tensor
    """Calibrated, for the held-out prior, float32, shape (N, C)."""
    worth: float
    """Number of samples that a row stands for, 1 unless there were too many."""
    weights: Tensor
    """How much each row counts, shape (N,)."""
    rows: Tensor
    """Positions of the rows among all samples, shape (N,)."""

    @classmethod
    def of(cls, posteriors: Posteriors, weights: Tensor | None = None) -> "Sample":
        """Return all samples, or as many as replicates are made of."""
        N, C = posteriors.num_samples, posteriors.num_classes
        max_rows = max(2, SAMPLE_ELEMENTS // C)
        generator = torch.Generator().manual_seed(0)
        rows = torch.arange(N)
        if max_rows < N:
            rows = torch.randperm(N, generator=generator)[:max_rows].sort().values
        log_p = posteriors.rows(rows, torch.float64).log().clamp_min(LOWEST).float()
        counts = torch.ones(len(rows)) if weights is None else weights[rows].float()
        return cls(log_p, N / len(rows), counts, rows)


class Replicate(NamedTuple):
    """B replicates side by side."""

    p: Tensor
    """Posteriors of the unlabelled samples, shape (B, N, C)."""
    p_held_out: Tensor
    """Posteriors of the held-out samples, shape (B, n, C)."""
    weights: Tensor
    """Shape (B, N)."""
    held_out_weights: Tensor
    """Shape (B, n)."""
    prior: Tensor
    """Target prior q, float64, shape (B, C)."""
    mean: Tensor
    """Mean posterior m of the source data, float64, shape (B, C)."""

    @property
    def responsibilities(self) -> Tensor:
        """Posteriors of the unlabelled samples under the target prior, (B, N, C)."""
        r = self.p * (self.prior / self.mean)[:, None].to(self.p.dtype)
        return r / r.sum(dim=2, keepdim=True).clamp_min(torch.finfo(r.dtype).tiny)


@dataclass(frozen=True, eq=False)
class Replicates:
    """Draws of calibrator, mean posterior and target prior.

    Attributes:
        target: The unlabelled samples.
        held_out: The labelled samples.
        labels: Their labels, shape (n,).
        prior: q, where the fits of the target prior start, shape (C,).
        is_known: Whether q is given and is not fitted.
        ridge: Prior precision of each class's own scale and bias.
        num_replicates: Number of draws.
        seed: Seed of the draws.
    """

    target: Sample
    held_out: Sample
    labels: Tensor
    prior: Tensor
    is_known: bool = False
    ridge: float = RIDGE
    num_replicates: int = NUM_REPLICATES
    seed: int = 0

    def __iter__(self) -> Iterator[Replicate]:
        """Yield the draws, as many side by side as memory allows."""
        rng = np.random.default_rng(self.seed)
        curvature = _Curvature.of(self.held_out, self.labels, self.ridge)
        size = self.target.log_p.numel() + self.held_out.log_p.numel()
        at_once = max(1, ELEMENTS_AT_ONCE // size)
        for start in range(0, self.num_replicates, at_once):
            columns = min(at_once, self.num_replicates - start)
            v_t = _gamma_weights(self.target, columns, rng)
            v_h = _gamma_weights(self.held_out, columns, rng)
            noise = torch.from_numpy(rng.standard_normal((columns, curvature.size)))
            scale, bias = curvature.moves(v_h.double() - 1, noise)
            yield self._fitted(v_t, v_h, scale.float(), bias.float())

    def center(self, prior: Tensor | None = None) -> Replicate:
        """Return what is found without any perturbation, with B = 1.

        Args:
            prior: Take this target prior instead of fitting one, shape (C,).
        """
        C = self.target.log_p.shape[1]
        v_t, v_h = (sample.weights[None] for sample in (self.target, self.held_out))
        zeros = torch.zeros(1, C)
        return self._fitted(v_t, v_h, zeros, zeros, prior, is_corrected=False)

    def _fitted(
        self,
        v_t: Tensor,
        v_h: Tensor,
        scale: Tensor,
        bias: Tensor,
        prior: Tensor | None = None,
        *,
        is_corrected: bool = True,
    ) -> Replicate:
        p_t, p_h = (
            (log_p * scale.exp()[:, None] + bias[:, None]).softmax(dim=2)
            for log_p in (self.target.log_p, self.held_out.log_p)
        )
        m = torch.bmm(v_h[:, None], p_h)[:, 0] / v_h.sum(dim=1, keepdim=True)
        m = m.double().clamp_min(1e-30)
        given = self.prior if self.is_known else prior
        if given is not None:
            return Replicate(p_t, p_h, v_t, v_h, given.expand_as(m), m)
        q, m = self._fit_prior(p_t, p_h, v_t, v_h, m)
        found = Replicate(p_t, p_h, v_t, v_h, q, m)
        if is_corrected and q.shape[1] <= MAX_CORRECTED_CLASSES:
            found = found._replace(prior=self._corrected(found))
        return found

    def _corrected(self, found: Replicate) -> Tensor:
        r"""Return priors (B, C) corrected by held-out labels.

        The fitted q is where the mean responsibilities of the unlabelled samples are q.
        That is right for calibrated posteriors. Whatever the posteriors, the means are
        :math:`A q` with the mean responsibilities :math:`A_{jk}` of class j among
        samples of class k. Columns of A come from labels, and from posteriors as if
        these were a few labels more.
        """
        weight = (found.prior / found.mean)[:, None].float()
        r = found.p_held_out * weight
        r /= r.sum(dim=2, keepdim=True).clamp_min(torch.finfo(r.dtype).tiny)  # (B,n,C)
        v, C = found.held_out_weights, r.shape[2]
        labels = F.one_hot(self.labels, C).float()
        counts = v @ labels  # (B, C)
        mass = torch.bmm(v[:, None], found.p_held_out)[:, 0].clamp_min(1e-30)
        # How much each sample counts for each class, by label and by posterior.
        shares = labels + CORRECTION_LABELS * found.p_held_out / mass[:, None]
        shares = shares * v[:, :, None] / (counts + CORRECTION_LABELS)[:, None]
        A = torch.bmm(r.transpose(1, 2), shares).double()  # (B, C, C)
        A = A / A.sum(dim=1, keepdim=True).clamp_min(TINY)
        v_t = found.weights / found.weights.sum(dim=1, keepdim=True)
        mean = torch.bmm(v_t[:, None], found.responsibilities)[:, 0].double()
        q = found.prior
        for _ in range(CORRECTION_PASSES):
            expected = torch.bmm(A, q[:, :, None])[:, :, 0].clamp_min(TINY)
            q = q * torch.bmm((mean / expected)[:, None], A)[:, 0]
        return q / q.sum(dim=1, keepdim=True)

    def _fit_prior(
        self, p_t: Tensor, p_h: Tensor, v_t: Tensor, v_h: Tensor, m: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return q and m (B, C) of the largest joint likelihood.

        It is the likelihood of
        :func:`~tailshift.estimators.likelihood.maximise_jointly`, whose columns share
        their posteriors; here the calibrator gives each replicate its own.
        """
        n_t = v_t.sum(dim=1) * self.target.worth  # (B,)
        n_h = v_h.sum(dim=1) * self.held_out.worth
        share = self.target.worth / self.held_out.worth

        def step(x: Tensor, active: Tensor) -> Step:
            q, m = (normalised(half).T for half in x.chunk(2))  # (B, C)
            w = (q / m.clamp_min(TINY)).float()
            rho = (n_t / n_h)[active][:, None]
            gain, of_t, value_t = _sums(p_t, v_t, active, w, rho, True)
            _, of_s, value_s = _sums(p_h, v_h, active, w, rho, False)
            after = torch.cat([(w * gain).T, (share * of_t + of_s).T]).double()
            after = torch.cat([normalised(half) for half in after.chunk(2)])
            error = (after - torch.cat([q, m], dim=1).T).abs().sum(dim=0)
            return Step(after, share * value_t + value_s, error)

        # From between the estimate and m: EM cannot leave an exact 0.
        start = (0.9 * self.prior + 0.1 * m).T
        x = torch.cat([start, m.T])
        found = squarem(step, x, tolerance=PRIOR_TOLERANCE, max_iter=PRIOR_PASSES)
        q, m = (normalised(half).T for half in found.x.chunk(2))
        return q, m


def _gamma_weights(sample: Sample, columns: int, rng: np.random.Generator) -> Tensor:
    """Return random weights of mean 1 times the sample's own, (columns, N).

    A sum of as many exponential weights as a row stands for has a gamma distribution.
    """
    drawn = rng.standard_gamma(sample.worth, (columns, len(sample.log_p)))
    return torch.from_numpy(drawn / sample.worth).float() * sample.weights


def _sums(
    p: Tensor, v: Tensor, active: Tensor, w: Tensor, rho: Tensor, is_target: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ v p/u and Σ v p/(1 + ρu), both (B, C), and the log-likelihood (B,)."""
    if len(active) < len(p):
        p, v = p[active], v[active]
    u = torch.bmm(p, w[:, :, None])[:, :, 0].clamp_min(torch.finfo(p.dtype).tiny)
    inverse = (1 + rho * u).reciprocal()  # (B, rows)
    terms = (rho * u * inverse).log() if is_target else inverse.log()
    both = torch.bmm(torch.stack([v / u, v * inverse], dim=1), p)  # (B, 2, C)
    return both[:, 0], both[:, 1], (v * terms).double().sum(dim=1)


@dataclass(frozen=True, eq=False)
class _Curvature:
    r"""How the calibrator moves with the weights of the held-out samples.

    The parameters are a log scale and a bias for each class, on top of the fitted
    calibrator: :math:`e^{a_c} \log p_c + b_c`, with a Gaussian prior of precision
    ``ridge``. One Newton step from 0 gives

    .. math:: \delta = H^{-1} \Bigl(-\sum_i (v_i - 1)\, g_i + \Lambda^{1/2} \xi\Bigr)

    with the scores :math:`g_i`, the Fisher information plus the prior precision
    :math:`H = I + \Lambda` and :math:`\xi` standard normal.
    """

    scores: Tensor
    """:math:`g_i`, shape (n, 2C), of as many samples as a row stands for."""
    factor: Tensor
    """Cholesky factor of :math:`H`, (2C, 2C); or of its blocks by class, (C, 2, 2)."""
    root: Tensor
    """:math:`\\Lambda^{1/2}` by class and for the mean log scale, (2C + 1,)."""

    @property
    def size(self) -> int:
        """How many normal variables a draw needs."""
        return len(self.root)

    @classmethod
    def of(cls, held_out: Sample, labels: Tensor, ridge: float) -> "_Curvature":
        z, worth = held_out.log_p.double(), held_out.worth
        C = z.shape[1]
        p = z.exp()
        away = p - F.one_hot(labels, C)
        scores = worth * torch.cat([away * z, away], dim=1)
        of_class = torch.full((2 * C,), ridge, dtype=torch.float64)
        root = torch.cat([of_class, torch.tensor([SCALE_PRECISION]).double()]).sqrt()
        pz = p * z
        sums = [worth * (left * right).sum(dim=0) for left, right in ((pz, z), (p, z))]
        total = worth * p.sum(dim=0)
        if C > MAX_DENSE_CLASSES:
            away_z = worth * torch.stack([pz.square().sum(0), (pz * p).sum(0)])
            aa, ab = sums[0] - away_z[0] + ridge, sums[1] - away_z[1]
            bb = total - worth * p.square().sum(dim=0) + ridge
            blocks = torch.stack([aa, ab, ab, bb], dim=1).reshape(C, 2, 2)
            return cls(scores, torch.linalg.cholesky(blocks), root)
        H = torch.zeros(2 * C, 2 * C, dtype=torch.float64)
        H[:C, :C] = torch.diag(sums[0] + ridge) - worth * pz.T @ pz
        # The mean log scale is shared by all classes: its prior is wide.
        H[:C, :C] += (SCALE_PRECISION / C - ridge) / C
        H[:C, C:] = torch.diag(sums[1]) - worth * pz.T @ p
        H[C:, :C] = H[:C, C:].T
        H[C:, C:] = torch.diag(total + ridge) - worth * p.T @ p
        return cls(scores, torch.linalg.cholesky(H), root)

    def moves(self, away: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return log scales and biases, both (B, C).

        Args:
            away: Weights of the held-out samples less 1, shape (B, n).
            noise: Standard normal, shape (B, 2C + 1).
        """
        C = self.scores.shape[1] // 2
        of_prior = noise * self.root
        pulled = of_prior[:, :C] - of_prior[:, :C].mean(dim=1, keepdim=True)
        pulled = pulled + of_prior[:, -1:] / C
        right = torch.cat([pulled, of_prior[:, C:-1]], dim=1) - away @ self.scores
        if self.factor.ndim == 3:
            pairs = right.reshape(-1, 2, C).permute(2, 1, 0)  # (C, 2, B)
            moved = torch.cholesky_solve(pairs, self.factor)
            moved = moved.permute(2, 1, 0).reshape(len(right), 2 * C)
        else:
            moved = torch.cholesky_solve(right.T, self.factor).T
        scale, bias = moved.chunk(2, dim=1)
        return scale.clamp(-MAX_SCALE_STEP, MAX_SCALE_STEP), bias


def prior_interval(draws: Tensor, prior: Tensor, num_samples: float) -> Tensor:
    """Return the 95 % interval of a prior, shape (2, C).

    It is never narrower than the interval [clopper1934] that labels of all unlabelled
    samples would give. Ends within one sample of 0 and 1 are 0 and 1: nothing tells a
    class that rare from an absent one.

    Args:
        draws: Priors of the replicates, shape (B, C).
        prior: The estimate, which the interval contains, shape (C,).
        num_samples: Number of unlabelled samples.
    """
    from scipy.special import betaincinv  # slow to import, and only intervals need it

    low, high = _with_margin(*percentile_interval(draws, prior), prior)
    seen = (num_samples * prior).numpy()
    rest = num_samples - seen
    with_labels = betaincinv(
        np.stack([np.maximum(seen, 1e-9), seen + 1]),
        np.stack([rest + 1, np.maximum(rest, 1e-9)]),
        np.array([[0.025], [0.975]]),
    )
    low_exact, high_exact = torch.from_numpy(with_labels)
    low, high = low.minimum(low_exact), high.maximum(high_exact)
    low = low.where(low * num_samples >= 1, 0.0)
    return torch.stack([low, high.where((1 - high) * num_samples >= 1, 1.0)])


def widened_interval(draws: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 95 % interval of a figure.

    Percentiles of the replicates, also moved so that their median is what was found:
    the rule stays the same while the calibrator varies, so replicates are pessimistic
    where labels are few. The distance from what was found is enlarged by a quarter: no
    calibrator fits a model exactly, and without this margin 93 % of the intervals of
    223 simulated accuracies covered the truth.

    Args:
        draws: The figure in the replicates, shape (B, ...).
        found: The figure without perturbation, shape (...).
    """
    low, high = percentile_interval(draws, found)
    bias = draws.median(dim=0).values - found
    return _with_margin(low.minimum(low - bias), high.maximum(high - bias), found)


def _with_margin(low: Tensor, high: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    return found - MARGIN * (found - low), found + MARGIN * (high - found)


def percentile_interval(
    draws: Tensor, found: Tensor, level: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return percentiles of draws (B, ...), widened to contain what was found.

    Example:
        >>> low, high = percentile_interval(torch.arange(101.0)[:, None] / 100, 0.5)
        >>> low, high
        (tensor([0.0250]), tensor([0.9750]))
    """
    tail = (1 - level) / 2
    levels = torch.tensor([tail, 1 - tail], dtype=draws.dtype)
    low, high = torch.quantile(draws, levels, dim=0)
    found = torch.as_tensor(found, dtype=draws.dtype)
    return low.minimum(found), high.maximum(found)
