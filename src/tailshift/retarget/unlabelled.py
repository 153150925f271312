"""Estimate a target prior, or the logit prior, without any label."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tailshift.estimators.likelihood import maximise, normalised
from tailshift.estimators.posteriors import Posteriors, effective_samples
from tailshift.estimators.replicates import prior_interval
from tailshift.retarget.matching import matching_weights

MODEL_ERROR = 0.4
"""Assumed standard deviation of the log of a class's mean probability: without labels
nobody knows whether the model says a class half as often again as it should."""
_NUM_REPLICATES = 99
MAX_REPLICATE_ELEMENTS = 2**21  # posteriors that replicates are drawn from
_TOLERANCE = 1e-6

PriorMethod: TypeAlias = Literal["mean", "transport"]
PRIOR_METHODS: tuple[PriorMethod, ...] = get_args(PriorMethod)


@dataclass(frozen=True, eq=False)
class UnlabelledEstimate:
    """A target prior estimated without labels.

    Attributes:
        prior: The estimate, shrunk towards the centre, shape (C,).
        likeliest: The estimate before it is shrunk, shape (C,).
        weight: Share of the log ratio to the centre that is kept, in [0, 1].
        effective_samples: Number of labelled samples that the estimate is worth.
        interval: 95 % interval, shape (2, C); it contains the model's assumed error.
    """

    prior: Tensor
    likeliest: Tensor
    weight: float
    effective_samples: float
    interval: Tensor | None


def estimate_unlabelled(
    log_p: Tensor,
    logit_prior: Tensor,
    *,
    center: Tensor | None = None,
    model_error: float = MODEL_ERROR,
    with_interval: bool = False,
    seed: int = 0,
) -> UnlabelledEstimate:
    r"""Estimate the target prior of predictions that nobody has checked.

    Use this when there is no label at all. The likelihood of the samples is maximised
    with one pseudo-sample per class, and the result is shrunk towards the centre:

    .. math:: q \propto g \left(\hat q / g\right)^{s}, \quad
              s = \max\left(0,\, 1 - \frac{\sigma^2 + \bar v}{\mathrm{Var}_g
              \log(\hat q / g)}\right)

    with the centre g, the assumed error σ of the model's mean log probabilities, and
    the sampling variance :math:`\bar v`. A shift that the model's own error could
    produce is ignored, a large one is kept (James and Stein's shrinkage).

    Args:
        log_p: Log probabilities under the logit prior, up to a constant per row,
            shape (N, C).
        logit_prior: Prior of the logits, positive, shape (C,).
        center: g, positive, shape (C,); by default the logit prior.
        model_error: σ.
        with_interval: Whether to compute the interval.
        seed: Seed of the replicates.

    Example:
        >>> y = torch.tensor([0] * 90 + [1] * 10)
        >>> log_p = 4.0 * torch.eye(2)[y]
        >>> estimate_unlabelled(log_p, torch.tensor([0.5, 0.5])).prior.round(decimals=1)
        tensor([0.9000, 0.1000], dtype=torch.float64)
    """
    p = log_p.double().softmax(dim=1)
    m = normalised(logit_prior.double())
    g = m if center is None else normalised(center.double())
    C = len(m)
    samples = Posteriors.of(p)
    found = maximise(
        samples,
        m[:, None],
        start=g[:, None],
        pseudo_counts=C * g[:, None],
        tolerance=_TOLERANCE,
    ).x[:, 0]
    weight = _kept(found, g, len(p), model_error)
    interval = None
    if with_interval:
        draws = _replicates(p, m, g, model_error, seed)
        interval = prior_interval(draws, found, len(p))
    return UnlabelledEstimate(
        prior=normalised(g * (found / g) ** weight),
        likeliest=found,
        weight=weight,
        effective_samples=_worth(p, found, m, model_error),
        interval=interval,
    )


def _kept(found: Tensor, center: Tensor, num_samples: int, model_error: float) -> float:
    """Return the share s of the log ratio that is more than noise and model error."""
    log_w = (found / center).log()
    variance = (center * (log_w - (center * log_w).sum()).square()).sum()
    noise = (center / (num_samples * found + 1)).sum()
    if variance <= 0:
        return 0.0
    return max(0.0, 1 - float((model_error**2 + noise) / variance))


def _worth(p: Tensor, q: Tensor, m: Tensor, model_error: float) -> float:
    """Return the number of labels that the estimate is worth.

    The model's error does not average out: with an error σ of the log odds per class,
    no number of samples is worth more than Σ q (1 − q) / Σ q² (1 − q)² σ² labels.
    """
    by_samples = effective_samples(p, q, m, torch.ones(len(p), dtype=torch.float64))
    if not model_error:
        return by_samples
    spread = q * (1 - q)
    most = float(spread.sum() / (spread.square().sum() * model_error**2))
    return 1 / (1 / max(by_samples, 1e-9) + 1 / max(most, 1e-9))


def _replicates(p: Tensor, m: Tensor, g: Tensor, error: float, seed: int) -> Tensor:
    """Return estimates of resampled rows and perturbed models, (B, C)."""
    C, B = len(m), _NUM_REPLICATES
    generator = torch.Generator().manual_seed(seed)
    most = max(1, MAX_REPLICATE_ELEMENTS // C)
    if len(p) > most:
        p = p[torch.randperm(len(p), generator=generator)[:most]]
    drawn = torch.randint(len(p), (B, len(p)), generator=generator)
    counts = [torch.bincount(rows, minlength=len(p)) for rows in drawn]
    noise = torch.randn(C, B, generator=generator, dtype=torch.float64)
    found = maximise(
        Posteriors.of(p),
        normalised(m[:, None] * (error * noise).exp()),
        start=g[:, None].repeat(1, B),
        weights=torch.stack(counts, dim=1),
        pseudo_counts=(C * g[:, None]).repeat(1, B),
        tolerance=1e-4,
    )
    return found.x.T


def estimate_logit_prior(
    log_p: Tensor, distribution: Tensor, method: PriorMethod
) -> Tensor:
    r"""Estimate the logit prior from unlabelled data of known class distribution.

    Use this if you do not have the training counts of a model.

    ``"mean"`` assumes that the data follow the model's own prior: the logit prior is
    the mean prediction. ``"transport"`` assumes that the data follow ``distribution``
    r, and that predictions are calibrated up to the prior. It takes the class weights w
    by which the mean prediction becomes r, so the logit prior is r / w. This is optimal
    transport to a given target, and the fixed point of EM for a known target prior.

    Args:
        log_p: Log probabilities, up to a constant per row, shape (N, C).
        distribution: r, positive, shape (C,).
        method: One of the two.

    Returns:
        The logit prior, shape (C,).

    Example:
        >>> log_p = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
        >>> estimate_logit_prior(log_p, torch.tensor([0.5, 0.5]), "mean")
        tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    p = log_p.double().softmax(dim=1)
    r = normalised(distribution.double())
    if method == "mean":
        return normalised(p.mean(dim=0) + 1e-9)
    if method != "transport":
        raise ValueError(
            f"`method` must be one of {', '.join(PRIOR_METHODS)}, got {method!r}."
        )
    return normalised(r / matching_weights(p, r))
