r"""The certificate: how well a model will do on a target that nobody has labelled.

Under label shift a score :math:`s(x, y)` of the model's answers has on the target the
mean :math:`\sum_c q_c S_c`, where :math:`S_c` is its mean over class c, the same in
source and target. Held-out labels tell :math:`S_c` of classes that have many of them,
calibrated posteriors that of the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tailshift.calibration import LOWEST, SCALE_RIDGE
from tailshift.checks import ArrayLike, as_tensor, check_logits
from tailshift.compensation import log_prior_ratio
from tailshift.estimators.adaptation import default_estimator
from tailshift.estimators.base import NUM_REPLICATES, PriorEstimator, poisson_weights
from tailshift.estimators.carried import TWO_SIDED_95
from tailshift.estimators.likelihood import TINY, Step, normalised, squarem
from tailshift.metrics.calibration_error import NUM_BINS, bin_of, equal_width_edges
from tailshift.predictions import Predictions
from tailshift.targets import Target, as_target_prior

POSTERIOR_SAMPLES = 20.0  # held-out samples of a class that its posteriors count for
FIGURE_ELEMENTS = 2**20  # logits of either kind that figures are computed from
ELEMENTS_AT_ONCE = 2**22  # posteriors of the replicates computed side by side
BIAS_RIDGE = 1.0  # that of the calibrator
LARGEST_STEP = 0.5  # of the log scale of a calibrator fitted anew
PRIOR_TOLERANCE, PRIOR_PASSES = 3e-3, 30  # of the prior fitted anew
NUM_FIGURES = 4  # accuracy, macro recall, ECE and NLL, before the recalls

Ends = tuple[float, float]
NO_FIGURE = float("nan")


@dataclass(frozen=True, eq=False)
class Performance:
    """How well a model will do, each figure with its 95 % interval.

    Attributes:
        accuracy: Share of right answers, in [0, 1].
        accuracy_interval: Lower and upper end.
        macro_recall: Mean recall of the classes that occur, in [0, 1].
        macro_recall_interval: Lower and upper end.
        ece: Expected calibration error in 20 bins, lower is better, in [0, 1].
        ece_interval: Lower and upper end.
        nll: Negative log-likelihood a sample in nats, lower is better.
        nll_interval: Lower and upper end.
        recall: Share of right answers of each class, shape (C,).
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
    """What to expect of a model that is re-targeted to unlabelled data.

    The figures of :class:`Performance` are those of the model re-targeted to
    ``target_prior``. If the certificate is refused, every figure is NaN.

    Attributes:
        target_prior: The class mix of the target, estimated or given, shape (C,).
        prior_interval: Its 95 % interval, shape (2, C).
        source_prior: The class mix of the training data, shape (C,).
        as_trained: The figures of the model that answers for the source prior.
        gain: What re-targeting adds to the accuracy.
        gain_interval: Its 95 % interval.
        assumption_p_value: How often a mixture of the source's classes looks as
            strange as the target does, in (0, 1].
        is_refused: Whether that is too seldom for any figure to be given.
        reason: Why, in a sentence.
        num_held_out: How many labelled samples were used.
        num_target: How many unlabelled samples were used.
    """

    target_prior: Tensor
    prior_interval: Tensor
    source_prior: Tensor
    as_trained: Performance
    gain: float
    gain_interval: Ends
    assumption_p_value: float
    is_refused: bool
    reason: str
    num_held_out: int
    num_target: int

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON knows it: lists, and None for NaN."""
        found: dict[str, Any] = _jsonable(self)
        return found


def certify(
    held_out: Predictions,
    target_logits: ArrayLike,
    target_prior: Target | None = None,
    *,
    estimator: PriorEstimator | None = None,
    level: float = 0.05,
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
    announce: Callable[[str], None] = lambda phase: None,
) -> Certificate:
    r"""Say how well a model will do on unlabelled data, or that nobody can tell.

    The target is taken for a mixture of the source's classes, :math:`\sum_c q_c\,
    p_s(x|c)`. Accuracy, recall and NLL are :math:`\sum_c q_c S_c` with

    .. math:: S_c = \frac{\sum_{i: y_i = c} s(x_i, c) + k\, \tilde S_c}{n_c + k},
              \qquad \tilde S_c = \frac{\sum_j r_c(x_j)\, s(x_j, c)}{\sum_j r_c(x_j)},
              \qquad r_c(x) \propto \frac{q_c}{m_c}\, p(c|x)

    over held-out samples i with labels and target samples j without, and k = 20. Both
    estimates of the accuracy are in it. With k = 0 it is the recall of held-out labels
    re-weighted by q, which needs no calibration but many labels of each class; with k
    → ∞ it is the mean calibrated posterior of the answers, which needs no label of a
    class but a calibrator that is right. What is between them errs about as little as
    the better one of the two, whichever that is (``docs/certificate.md``). The ECE is
    by posteriors alone: the noise of few labels in a bin would count as error.

    Intervals are ± 1.96 standard deviations of replicates in which every sample counts
    a Poisson(1) number of times: the calibrator moves by one Newton step, and the prior
    is fitted anew without the centre of :class:`~tailshift.estimators.MAPEstimator`.
    What few labels hide from replicates is added to the variance of recalls.

    The test of the assumption is black-box [rabanser2019] [lipton2018]. It compares
    means over the target with means over the held-out samples re-weighted by
    :math:`q_y / p_s(y)`, of log of the largest posterior, entropy, logsumexp and
    standard deviation of the logits, and each class's part of the entropy; each less
    what a linear function of the posteriors tells of it, so that mixtures hardly move
    it. The largest gap, in its standard deviations, is judged by the replicates, in
    which the prior is fitted anew.

    Args:
        held_out: Labelled source data that nothing was trained on, with
            ``source_counts`` and ``trained_prior`` if they are known.
        target_logits: Logits of the target from the same model, shape (N, C).
        target_prior: The target's class mix if it is known: a prior (C,), a name or a
            file. By default it is estimated.
        estimator: Fitted on ``held_out``, then used to calibrate and to estimate; by
            default a :class:`~tailshift.estimators.MAPEstimator`.
        level: Largest p-value at which the certificate is refused.
        num_replicates: Number of bootstrap replicates.
        seed: Seed for the replicates, and for the subset of samples if they are many.
        announce: Told what is done next.

    Example:
        >>> logits = torch.randn(3000, 3).mul(2)
        >>> labels = torch.distributions.Categorical(logits=logits).sample()
        >>> held_out = Predictions(logits[:1000], labels[:1000])
        >>> target = logits[1000:][labels[1000:] > 0]
        >>> found = certify(held_out, target)
        >>> found.target_prior.round(decimals=1)
        tensor([0.0000, 0.5000, 0.5000], dtype=torch.float64)
        >>> round(found.accuracy, 1), found.gain_interval[0] > 0, found.is_refused
        (0.9, True, False)
    """
    f = check_logits(as_tensor(target_logits, "target_logits").cpu())
    _check_classes(held_out, f)
    _check_settings(level, num_replicates)
    announce(f"calibrating on {len(held_out.labels):,} held-out samples")
    estimator = estimator or default_estimator(held_out)
    estimator.fit(held_out.logits, held_out.labels)
    given = _given_prior(held_out, target_prior)
    if given is None:
        announce(f"estimating {f.shape[1]:,} shares from {len(f):,} samples")
        q = estimator.estimate(f)
    else:
        q = given
    samples = _Samples.make(estimator, held_out, f, q, is_known=given is not None)
    announce(f"computing {num_replicates} replicates")
    return _certificate(samples, level, num_replicates, seed)


def _check_classes(held_out: Predictions, f: Tensor) -> None:
    if f.shape[1] != held_out.num_classes:
        raise ValueError(
            f"`target_logits` has {f.shape[1]} classes, but `held_out` has "
            f"{held_out.num_classes}. Both must come from one model."
        )


def _check_settings(level: float, num_replicates: int) -> None:
    if not 0 <= level < 1:
        raise ValueError(f"`level` must lie in [0, 1), but is {level:g}.")
    if num_replicates < 2:
        raise ValueError(
            f"`num_replicates` must be at least 2, but is {num_replicates}."
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


class _Answers(NamedTuple):
    """What a model answers for one prior, and how the held-out answers fare."""

    predicted: Tensor
    """Of target samples, shape (N,)."""
    confidence: Tensor
    """Theirs, shape (N,)."""
    loss: Tensor
    """−log of each class's probability, shape (N, C)."""
    bins: Tensor
    """Bin of each confidence as a row of 0 and 1, shape (N, M)."""
    held_out_scores: Tensor
    """1 if right, and the loss, shape (n, 2)."""


@dataclass(frozen=True, eq=False)
class _Samples:
    """Both samples, as replicates need them."""

    target_prior: Tensor
    """q, shape (C,)."""
    source_prior: Tensor
    is_known: bool
    """Whether q was given."""
    log_p: Tensor
    """Calibrated log posteriors of the target for the source prior, (N, C)."""
    held_out_log_p: Tensor
    """Those of the held-out samples, (n, C)."""
    labels: Tensor
    """One row of 0 and 1 a held-out sample, (n, C)."""
    rules: tuple[_Answers, _Answers]
    """Answers for q, and for the source prior."""
    statistics: Tensor
    """What no mixture moves, of the target, (N, K)."""
    held_out_statistics: Tensor
    """The same of the held-out samples, (n, K)."""

    @classmethod
    def make(
        cls,
        estimator: PriorEstimator,
        held_out: Predictions,
        f: Tensor,
        q: Tensor,
        *,
        is_known: bool,
    ) -> "_Samples":
        f, rows = f[_some(f)], _some(held_out.logits)
        f_h, y = held_out.logits[rows], held_out.labels[rows]
        log_p, log_p_h = (_log_posterior(estimator, g) for g in (f, f_h))
        rules = [
            _answer(f, f_h, y, estimator.trained_prior_, prior)
            for prior in (q, estimator.source_prior_)
        ]
        found = _statistics(f, log_p, f_h, log_p_h, q / log_p_h.exp().mean(dim=0))
        labels = F.one_hot(y, f.shape[1]).float()
        p_s = estimator.source_prior_
        return cls(
            q, p_s, is_known, log_p, log_p_h, labels, (rules[0], rules[1]), *found
        )

    @property
    def num_classes(self) -> int:
        return len(self.target_prior)


def _some(f: Tensor) -> Tensor:
    """Return the rows that figures are computed from: all of them, or enough."""
    most = max(2, FIGURE_ELEMENTS // f.shape[1])
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(f), generator=generator)
    return order[:most].sort().values


def _log_posterior(estimator: PriorEstimator, f: Tensor) -> Tensor:
    return estimator.posterior(f).log().clamp_min(LOWEST).float()


def _answer(f: Tensor, f_h: Tensor, y: Tensor, trained: Tensor, q: Tensor) -> _Answers:
    ratio = log_prior_ratio(trained, q, num_classes=len(q))
    # A class that the prior rules out would make a loss infinite, and others NaN.
    log_a, log_a_h = (
        (g.double() + ratio).log_softmax(dim=1).clamp_min(LOWEST).float()
        for g in (f, f_h)
    )
    top, predicted = log_a.max(dim=1)
    edges = equal_width_edges(NUM_BINS, torch.float32)
    bins = F.one_hot(bin_of(top.exp(), edges), NUM_BINS).float()
    is_right = (log_a_h.argmax(dim=1) == y).float()
    scores = torch.stack([is_right, -log_a_h.gather(1, y[:, None])[:, 0]], dim=1)
    return _Answers(predicted, top.exp(), -log_a, bins, scores)


def _statistics(
    f: Tensor, log_p: Tensor, f_h: Tensor, log_p_h: Tensor, ratio: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return statistics of both samples, less what posteriors tell, (N, K), (n, K).

    With the coefficients of all samples together, :math:`T - \beta^\top p(\cdot|x)`.
    """
    p = torch.cat([log_p, log_p_h]).double().exp()
    t = torch.cat(
        [
            _of_logits(f.double(), log_p, ratio),
            _of_logits(f_h.double(), log_p_h, ratio),
        ]
    )
    t = (t - t.mean(dim=0)) / t.std(dim=0).clamp_min(1e-12)
    gram = p.T @ p + BIAS_RIDGE * torch.eye(p.shape[1])
    rest = (t - p @ torch.linalg.solve(gram, p.T @ t)).float()
    return rest[: len(f)], rest[len(f) :]


def _of_logits(f: Tensor, log_p: Tensor, ratio: Tensor) -> Tensor:
    """Return the statistics of the test, shape (N, 4 + C)."""
    log_r = (log_p + ratio.clamp_min(TINY).log()).log_softmax(dim=1).clamp_min(LOWEST)
    entropy = -log_r.exp() * log_r  # each class's part
    f = f.clamp_min(f.amax(dim=1, keepdim=True) + LOWEST)  # −inf has no deviation
    of_sample = [
        log_r.amax(dim=1),
        entropy.sum(dim=1),
        f.logsumexp(dim=1),
        f.std(dim=1),
    ]
    return torch.cat([torch.stack(of_sample, dim=1), entropy], dim=1)


class _Replicates(NamedTuple):
    """What B replicates give."""

    figures: Tensor
    """Of both rules: accuracy, macro recall, ECE, NLL, recalls, (B, 2, 4 + C)."""
    gaps: Tensor
    """Between target and held-out statistics, (B, K)."""
    prior: Tensor
    """(B, C)."""


def _certificate(
    samples: _Samples, level: float, num_replicates: int, seed: int
) -> Certificate:
    ones = _Weights.ones(samples)
    found = _replicate(samples, ones, samples.target_prior)
    free = _replicate(samples, ones)
    drawn = _draw(samples, num_replicates, seed)
    p_value = _p_value(free.gaps[0], drawn.gaps, _disagreement(samples, ones))
    if p_value <= level:
        return _refused(samples, p_value)
    q = samples.target_prior
    few = torch.stack([_few_label_variance(samples, rule) for rule in samples.rules])
    deviation = (drawn.figures.var(dim=0) + few).sqrt()
    both = [
        _performance(value, error)
        for value, error in zip(found.figures[0], deviation, strict=True)
    ]
    gains = [part.figures[:, 0, 0] - part.figures[:, 1, 0] for part in (found, drawn)]
    gain = gains[0].item()
    return Certificate(
        **vars(both[0]),
        target_prior=q,
        prior_interval=_percentiles(drawn.prior, q),
        source_prior=samples.source_prior,
        as_trained=both[1],
        gain=gain,
        gain_interval=_around(gain, gains[1].std().item(), -1.0, 1.0),
        assumption_p_value=p_value,
        is_refused=False,
        reason=_reason(p_value, samples.is_known, is_refused=False),
        num_held_out=len(samples.labels),
        num_target=len(samples.log_p),
    )


def _few_label_variance(samples: _Samples, answers: _Answers) -> Tensor:
    r"""Return what replicates leave out of the variance of each figure, (4 + C,).

    A class with 15 labels, all of them right, is right in every replicate. As in
    Agresti and Coull's interval [agresti1998] two more right and two more wrong answers
    stand for what may be: the variance of hits is that of :math:`n_c + 4` if larger.
    """
    n = samples.labels.sum(dim=0).double()  # (C,)
    hits = (answers.held_out_scores[:, 0] @ samples.labels).double()
    p, smooth = hits / n.clamp_min(1), (hits + 2) / (n + 4)
    missing = (n + 4) * smooth * (1 - smooth) - n * p * (1 - p)
    of_recall = missing.clamp_min(0) / (n + POSTERIOR_SAMPLES) ** 2
    q, occurs = samples.target_prior, (samples.target_prior > 0).double()
    shares = torch.stack([q, occurs / occurs.sum()])  # accuracy, macro recall
    nothing = torch.zeros(NUM_FIGURES - len(shares)).double()
    return torch.cat([shares**2 @ of_recall, nothing, of_recall])


class _Weights(NamedTuple):
    """How much samples count in B replicates, and how the calibrator moves."""

    target: Tensor
    """(B, N)."""
    held_out: Tensor
    """(B, n)."""
    scale: Tensor
    """Change of the log scale, (B,)."""
    bias: Tensor
    """Change of the biases, (B, C)."""

    @classmethod
    def ones(cls, samples: _Samples) -> "_Weights":
        n_t, n_h = len(samples.log_p), len(samples.labels)
        return cls(
            torch.ones(1, n_t),
            torch.ones(1, n_h),
            torch.zeros(1),
            torch.zeros(1, samples.num_classes),
        )


def _draw(samples: _Samples, num_replicates: int, seed: int) -> _Replicates:
    """Return replicates, as many side by side as memory allows."""
    generator = torch.Generator().manual_seed(seed)
    newton = _newton(samples.held_out_log_p.double(), samples.labels.double())
    size = samples.log_p.numel() + samples.held_out_log_p.numel()
    at_once = max(1, ELEMENTS_AT_ONCE // size)
    parts = []
    for start in range(0, num_replicates, at_once):
        columns = min(at_once, num_replicates - start)
        v_t = poisson_weights(len(samples.log_p), columns, generator)
        v_h = poisson_weights(len(samples.labels), columns, generator)
        moved = (newton @ (v_h.double() - 1)).T.float()  # (B, 1 + C)
        scale = moved[:, 0].clamp(-LARGEST_STEP, LARGEST_STEP)
        weights = _Weights(v_t.T.float(), v_h.T.float(), scale, moved[:, 1:])
        parts.append(_replicate(samples, weights))
    return _Replicates(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _newton(z: Tensor, labels: Tensor) -> Tensor:
    r"""Return :math:`-H^{-1}` times each sample's score, shape (1 + C, n).

    The parameters are a log scale a and biases b of :math:`e^a z + b`; counting sample
    i once more moves their fit by column i.
    """
    p = z.exp()
    away = z - (p * z).sum(dim=1, keepdim=True)
    scores = torch.cat([((p - labels) * z).sum(dim=1, keepdim=True), p - labels], dim=1)
    H = torch.diag(torch.cat([(p * away * z).sum().reshape(1), p.sum(dim=0)]))
    H[1:, 1:] -= p.T @ p
    H[0, 1:] = H[1:, 0] = (p * away).sum(dim=0)
    ridge = torch.full((len(H),), BIAS_RIDGE).double()
    ridge[0] = SCALE_RIDGE
    moved: Tensor = torch.linalg.solve(H + torch.diag(ridge), scores.T)
    return -moved


def _replicate(
    samples: _Samples, weights: _Weights, prior: Tensor | None = None
) -> _Replicates:
    """Return figures and gaps under given weights, with a prior fitted or given."""
    p_t, p_h = (
        _recalibrated(z, weights) for z in (samples.log_p, samples.held_out_log_p)
    )
    if prior is None and samples.is_known:
        prior = samples.target_prior
    q, m = _fit_prior(samples, p_t, p_h, weights, prior)
    r = p_t * (q / m)[:, None].to(p_t.dtype)  # (B, N, C)
    r /= r.sum(dim=2, keepdim=True).clamp_min(torch.finfo(r.dtype).tiny)
    figures = [_figures(samples, answers, r, weights, q) for answers in samples.rules]
    gaps = _gaps(samples, p_h, weights, q, POSTERIOR_SAMPLES)
    return _Replicates(torch.stack(figures, dim=1), gaps, q)


def _recalibrated(z: Tensor, weights: _Weights) -> Tensor:
    """Return posteriors (B, rows, C) of log posteriors (rows, C)."""
    scale = weights.scale.exp()[:, None, None]
    return (z * scale + weights.bias[:, None]).softmax(dim=2)


def _fit_prior(
    samples: _Samples, p_t: Tensor, p_h: Tensor, weights: _Weights, prior: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return q and m of each replicate, both (B, C)."""
    v_h = weights.held_out
    m = torch.bmm(v_h[:, None], p_h)[:, 0] / v_h.sum(dim=1, keepdim=True)
    m = m.double().clamp_min(1e-30)
    if prior is None:
        # From between the estimate and the source: EM cannot leave an exact 0.
        start = 0.9 * samples.target_prior + 0.1 * samples.source_prior
        return _maximise(p_t, p_h, weights, start.expand_as(m), m)
    q = prior.expand_as(m)
    if samples.is_known:
        return q, m
    return q, _maximise(p_t, p_h, weights, q, m, is_fixed=True)[1]


def _maximise(
    p_t: Tensor,
    p_h: Tensor,
    weights: _Weights,
    q: Tensor,
    m: Tensor,
    *,
    is_fixed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return q and m (B, C) of the largest joint likelihood.

    It is that of :func:`~tailshift.estimators.likelihood.maximise_jointly`, whose
    columns share their posteriors; here the calibrator gives each its own.
    """
    n_t, n_h = weights.target.sum(dim=1), weights.held_out.sum(dim=1)  # (B,)

    def step(x: Tensor, active: Tensor) -> Step:
        now_q, now_m = (normalised(half).T for half in x.chunk(2))  # (B, C)
        if is_fixed:
            now_q = q[active]
        w = (now_q / now_m.clamp_min(TINY)).float()
        t, s = n_t[active], n_h[active]
        rho = (t / s)[:, None]
        gain, of_t, value_t = _sums(p_t, weights.target, active, w, rho, True)
        _, of_s, value_s = _sums(p_h, weights.held_out, active, w, rho, False)
        after = torch.cat([(w * gain).T, (of_t + of_s).T]).double()
        after = torch.cat([normalised(half) for half in after.chunk(2)])
        error = (after - torch.cat([now_q, now_m], dim=1).T).abs().sum(dim=0)
        return Step(after, value_t + value_s, error)

    start = torch.cat([q.T, m.T])
    found = squarem(step, start, tolerance=PRIOR_TOLERANCE, max_iter=PRIOR_PASSES)
    new_q, new_m = (normalised(half).T for half in found.x.chunk(2))
    return (q if is_fixed else new_q), new_m


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


def _figures(
    samples: _Samples, answers: _Answers, r: Tensor, weights: _Weights, q: Tensor
) -> Tensor:
    """Return accuracy, macro recall, ECE, NLL and recalls of one rule, (B, 4 + C)."""
    v_t, v_h = weights.target, weights.held_out
    own = r.gather(2, answers.predicted.expand(len(r), -1)[:, :, None])[:, :, 0]
    mass = torch.bmm(v_t[:, None], r)[:, 0]  # (B, C)
    hits = torch.zeros_like(mass)
    hits.index_add_(1, answers.predicted, v_t * own)
    losses = torch.bmm(v_t[:, None], r * answers.loss)[:, 0]
    counts = v_h @ samples.labels  # (B, C)
    sums = _class_sums(samples.labels, answers.held_out_scores, v_h)
    by_class = torch.stack([hits, losses], dim=2) / mass.clamp_min(1e-30)[:, :, None]
    scores = _combined(sums, counts, by_class, POSTERIOR_SAMPLES)  # (B, C, 2)
    recall, loss = scores.double().unbind(dim=2)
    gap = (v_t * (own - answers.confidence)) @ answers.bins  # (B, M)
    ece = gap.abs().sum(dim=1) / v_t.sum(dim=1)
    occurs = (samples.target_prior > 0).double()
    macro = recall @ (occurs / occurs.sum())
    means = [(q * recall).sum(dim=1), macro, ece.double(), (q * loss).sum(dim=1)]
    return torch.cat([torch.stack(means, dim=1), recall], dim=1)


def _class_sums(labels: Tensor, values: Tensor, v: Tensor) -> Tensor:
    """Return the sums (B, C, K) over each class of values (n, K), weighted (B, n)."""
    spread = labels[:, :, None] * values[:, None]  # (n, C, K)
    return (v @ spread.flatten(1)).reshape(len(v), *spread.shape[1:])


def _combined(sums: Tensor, counts: Tensor, by_class: Tensor, k: float) -> Tensor:
    """Return class means: of labels, and as if k more were as posteriors say."""
    return (sums + k * by_class) / (counts + k)[:, :, None]


def _gaps(
    samples: _Samples, p_h: Tensor, weights: _Weights, q: Tensor, k: float
) -> Tensor:
    """Return mean statistics of the target less those of the mixture, (B, K)."""
    v_t = weights.target / weights.target.sum(dim=1, keepdim=True)
    w = _mixture_weights(samples, p_h, weights.held_out, q.float(), k)
    return (v_t @ samples.statistics - w @ samples.held_out_statistics).double()


def _mixture_weights(
    samples: _Samples, p_h: Tensor, v: Tensor, q: Tensor, k: float
) -> Tensor:
    """Return what each held-out sample counts in the mixture Σ_c q_c S_c, (B, n).

    A class's mean is of its labels, and as if k more were as posteriors say.
    """
    share = q / (v @ samples.labels + k)  # (B, C)
    mass = torch.bmm(v[:, None], p_h)[:, 0].clamp_min(1e-30)
    by_posterior = torch.bmm(p_h, (k * share / mass)[:, :, None])[:, :, 0]
    return v * (share @ samples.labels.T + by_posterior)


def _disagreement(samples: _Samples, ones: _Weights) -> Tensor:
    """Return how far labels and posteriors are apart on the mixture's means, (K,).

    They differ by noise, and by what the calibrator cannot get right.
    """
    p_t, p_h = (_recalibrated(z, ones) for z in (samples.log_p, samples.held_out_log_p))
    prior = samples.target_prior if samples.is_known else None
    q, _ = _fit_prior(samples, p_t, p_h, ones, prior)
    by_labels, by_posteriors = (_gaps(samples, p_h, ones, q, k)[0] for k in (1e-6, 1e6))
    return (by_labels - by_posteriors).abs()


def _p_value(found: Tensor, drawn: Tensor, disagreement: Tensor) -> float:
    """Return how often replicates are as far from what was found as that is from 0."""
    deviation = drawn.std(dim=0).clamp_min(1e-9)
    largest = (found / (deviation**2 + disagreement**2).sqrt()).abs().max()
    null = ((drawn - found) / deviation).abs().amax(dim=1)  # (B,)
    return (1 + int((null >= largest).sum())) / (1 + len(null))


def _performance(value: Tensor, deviation: Tensor) -> Performance:
    highest = (1.0, 1.0, 1.0, torch.inf)
    ends = [
        _around(v, d, 0.0, high)
        for v, d, high in zip(value.tolist(), deviation.tolist(), highest, strict=False)
    ]
    accuracy, macro_recall, ece, nll = value[:NUM_FIGURES].tolist()
    recall, width = value[NUM_FIGURES:], TWO_SIDED_95 * deviation[NUM_FIGURES:]
    return Performance(
        accuracy=accuracy,
        accuracy_interval=ends[0],
        macro_recall=macro_recall,
        macro_recall_interval=ends[1],
        ece=ece,
        ece_interval=ends[2],
        nll=nll,
        nll_interval=ends[3],
        recall=recall,
        recall_interval=torch.stack([recall - width, recall + width]).clamp(0, 1),
    )


def _around(value: float, deviation: float, lowest: float, highest: float) -> Ends:
    width = TWO_SIDED_95 * deviation
    if math.isnan(width):
        return NO_FIGURE, NO_FIGURE
    return max(value - width, lowest), min(value + width, highest)


def _percentiles(drawn: Tensor, q: Tensor) -> Tensor:
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975]).double(), dim=0)
    return torch.stack([low.minimum(q), high.maximum(q)])


def _refused(samples: _Samples, p_value: float) -> Certificate:
    """Return a certificate without figures; a prior that was given stays."""
    unknown = torch.full((NUM_FIGURES + samples.num_classes,), NO_FIGURE).double()
    nothing = _performance(unknown, unknown)
    q = samples.target_prior if samples.is_known else unknown[NUM_FIGURES:]
    return Certificate(
        **vars(nothing),
        target_prior=q,
        prior_interval=q.repeat(2, 1),
        source_prior=samples.source_prior,
        as_trained=nothing,
        gain=NO_FIGURE,
        gain_interval=(NO_FIGURE, NO_FIGURE),
        assumption_p_value=p_value,
        is_refused=True,
        reason=_reason(p_value, samples.is_known, is_refused=True),
        num_held_out=len(samples.labels),
        num_target=len(samples.log_p),
    )


def _reason(p_value: float, is_known: bool, *, is_refused: bool) -> str:
    mixture = "the given mixture" if is_known else "a mixture"
    if is_refused:
        mixture = "the given mixture" if is_known else "any mixture"
        return (
            f"the target does not look like {mixture} of the source's classes "
            f"(p = {p_value:.3f}): no figure can be given."
        )
    return (
        f"the target looks like {mixture} of the source's classes (p = {p_value:.2f}): "
        "the figures hold as far as it is one."
    )


def _jsonable(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    if isinstance(value, Performance):
        return {key: _jsonable(part) for key, part in vars(value).items()}
    return None if isinstance(value, float) and math.isnan(value) else value
