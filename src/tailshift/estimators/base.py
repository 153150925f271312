"""What all estimators share: which prior logits carry, calibration, intervals."""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Self, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift import calibration
from tailshift.checks import ArrayLike, as_tensor, check_logits, check_sample_labels
from tailshift.compensation import log_prior_ratio
from tailshift.estimators.posteriors import (
    SUMMED_ELEMENTS,
    Logits,
    Posteriors,
    effective_samples,
)
from tailshift.priors import VectorLike, as_prior, from_counts
from tailshift.registry import Registry

LEVEL = 0.95
NUM_REPLICATES = 200
REPLICATES_AT_ONCE = 50  # replicates computed side by side
ROWS = 2**16  # weights drawn at a time


def bootstrap_interval(
    replicate: Callable[[Tensor, Tensor], Tensor],
    *,
    num_samples: int,
    num_held_out: int,
    level: float = LEVEL,
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
) -> Tensor:
    """Return percentile intervals, lower and upper, shape (2, C).

    Every sample, unlabelled and held-out, counts a Poisson(1) number of times in a
    replicate, which is drawing with replacement without a fixed total.

    Args:
        replicate: Takes sample weights (N, B) and held-out weights (n, B), returns
            estimates (C, B).
        num_samples: N.
        num_held_out: n.
        level: Share of replicates inside.
        num_replicates: Number of replicates.
        seed: Seed for the weights.

    Example:
        >>> x = torch.arange(100.0)
        >>> bootstrap_interval(
        ...     lambda v, _: (x[:, None] * v).sum(0, keepdim=True) / v.sum(0),
        ...     num_samples=100,
        ...     num_held_out=1,
        ... ).squeeze()
        tensor([44.7400, 54.1095])
    """
    generator = torch.Generator().manual_seed(seed)
    estimates = []
    for start in range(0, num_replicates, REPLICATES_AT_ONCE):
        columns = min(REPLICATES_AT_ONCE, num_replicates - start)
        weights = poisson_weights(num_samples, columns, generator)
        held_out = poisson_weights(num_held_out, columns, generator)
        estimates.append(replicate(weights, held_out))
    tail = (1 - level) / 2
    values = torch.cat(estimates, dim=1)  # (C, replicates)
    levels = torch.tensor([tail, 1 - tail], dtype=values.dtype)
    return torch.quantile(values, levels, dim=1)


def poisson_weights(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return Poisson(1) counts (rows, columns) in a byte each, no column all 0."""
    # Drawn in parts: torch.poisson needs its rates, as wide as float32, in memory.
    parts = [
        torch.poisson(torch.ones(min(ROWS, rows - start), columns), generator=generator)
        for start in range(0, rows, ROWS)
    ]
    weights = torch.cat([part.to(torch.uint8) for part in parts])
    weights[0, weights.sum(dim=0) == 0] = 1
    return weights


FEW = 5  # held-out samples below which a class's share cannot be told well
COUNT_SMOOTHING = 0.5  # added to each held-out count if no source prior is given

CalibratorLike: TypeAlias = calibration.Calibrator | str | None


class FewSamplesWarning(UserWarning):
    """The held-out data has too few samples of a class to tell its share."""


class PriorEstimator(ABC):
    r"""Estimates a target prior from unlabelled logits.

    ``fit`` re-targets held-out logits from the prior that they carry to the source
    prior, :math:`f - \log p_{trained} + \log p_s`, and then calibrates them. The mean
    calibrated posterior on the held-out data is the denominator of the likelihood
    ratio.

    Args:
        trained_prior: The prior that the logits carry, positive, shape (C,). By default
            the source prior.
        source_prior: :math:`p_s`, positive, shape (C,). By default the share of each
            class among the held-out labels, smoothed.
        calibrator: ``"bcts"``, ``"temperature"``, ``"vector"``, an object with ``fit``
            and ``transform`` (a copy of it is fitted), or None for no calibration.

    Attributes:
        source_prior_: :math:`p_s`, shape (C,).
        trained_prior_: The prior that logits carry, shape (C,).
        calibrator_: The fitted calibrator.
        denominator_: Mean calibrated posterior on the held-out data, shape (C,).
        prior_: The last estimate, shape (C,).
        num_iter_: Passes over the unlabelled data that the last estimate took.
        converged_: Whether it converged.
    """

    _samples: Posteriors
    _interval: Tensor | None

    def __init__(
        self,
        *,
        trained_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "bcts",
    ) -> None:
        self.trained_prior = trained_prior
        self.source_prior = source_prior
        self.calibrator = calibrator

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> Self:
        """Learn from held-out source data: logits (N, C) and labels (N,)."""
        f = check_logits(as_tensor(logits, "logits").cpu())
        y = check_sample_labels(as_tensor(labels, "labels").cpu(), f)
        num_classes = f.shape[1]
        self.counts_ = torch.bincount(y, minlength=num_classes)
        _warn_of_few(self.counts_)
        self.source_prior_, self.trained_prior_ = self._priors(num_classes)
        self._log_ratio = log_prior_ratio(
            self.trained_prior_, self.source_prior_, num_classes=num_classes
        )
        self.calibrator_ = _make_calibrator(self.calibrator)
        if isinstance(self.calibrator_, calibration.Scaling):
            self.calibrator_.fit_shifted(f, y, self._log_ratio)
        elif self.calibrator_ is not None:
            self.calibrator_.fit(self._at_source(f), y)
        self.labels_ = y
        self._held_out = Posteriors(f, self.posterior, num_classes)
        self.denominator_ = _positive(self._held_out.mean())
        return self

    @overload
    def estimate(self, logits: Tensor) -> Tensor: ...
    @overload
    def estimate(self, logits: NDArray[Any]) -> NDArray[np.float64]: ...
    @overload
    def estimate(self, logits: Iterable[Any]) -> Any: ...
    def estimate(self, logits: Logits) -> Tensor | NDArray[np.float64]:
        """Return the target prior (C,) of unlabelled logits (N, C), in float64.

        Args:
            logits: A tensor or an array (it may be memory-mapped) of shape (N, C), or
                an iterable of such chunks, which is read once. The result is an array
                for arrays, and a tensor for tensors.
        """
        self._check_fitted()
        chunks, is_numpy = _kind(logits)
        samples = Posteriors(chunks, self.posterior, len(self.denominator_))
        self._samples, self._interval = samples, None
        self.prior_ = self._estimate(samples)
        return self.prior_.numpy() if is_numpy else self.prior_

    @property
    def interval_(self) -> Tensor:
        """95 % bootstrap interval of the last estimate: lower and upper, (2, C).

        Held-out and unlabelled samples are both drawn anew. It holds the estimate, and
        is computed when it is first asked for.
        """
        self._check_estimated()
        if self._interval is None:
            low, high = bootstrap_interval(
                self._replicate,
                num_samples=self._samples.num_samples,
                num_held_out=self._held_out.num_samples,
            )
            self._interval = torch.stack(
                [low.minimum(self.prior_), high.maximum(self.prior_)]
            )
        return self._interval

    @property
    def effective_samples_(self) -> float:
        """Number of labels that would tell the prior as well as the last samples did.

        It is that of the likelihood; an estimator that uses less of it knows less.
        See :func:`~tailshift.estimators.posteriors.effective_samples`.
        """
        self._check_estimated()
        N, C = self._samples.num_samples, self._samples.num_classes
        weights = self._sample_weights()
        rows = torch.arange(N)
        most = max(1, SUMMED_ELEMENTS // C)
        if most < N:
            rows = rows[:: -(-N // most)]  # every second, third …
        return effective_samples(
            self._samples.rows(rows, torch.float64),
            self.prior_,
            self.denominator_,
            weights[rows] * (weights.sum() / weights[rows].sum()),
        )

    def posterior(self, logits: Tensor) -> Tensor:
        """Return calibrated posteriors for the source prior, float64, (N, C)."""
        self._check_fitted()
        f = check_logits(as_tensor(logits, "logits").cpu())
        if f.shape[1] != len(self._log_ratio):
            raise ValueError(
                f"`logits` has {f.shape[1]} classes, "
                f"but the estimator was fitted on {len(self._log_ratio)}."
            )
        g = self._at_source(f)
        if self.calibrator_ is not None:
            g = self.calibrator_.transform(g)
        return g.softmax(dim=1)

    @abstractmethod
    def _estimate(self, samples: Posteriors) -> Tensor:
        """Return the prior (C,); sets ``num_iter_`` and ``converged_``."""

    @abstractmethod
    def _replicate(self, weights: Tensor, held_out_weights: Tensor) -> Tensor:
        """Return estimates (C, B) of the last samples, each column weighted anew."""

    def _at_source(self, f: Tensor) -> Tensor:
        return f.double() + self._log_ratio

    def _denominators(self, held_out_weights: Tensor | None) -> Tensor:
        """Return the denominator (C, 1), or one a column (C, B)."""
        if held_out_weights is None:
            return self.denominator_[:, None]
        return _positive(self._held_out.mean(held_out_weights))

    def _priors(self, num_classes: int) -> tuple[Tensor, Tensor]:
        source = self.source_prior
        if source is None:
            source = from_counts(self.counts_ + COUNT_SMOOTHING)
        trained = source if self.trained_prior is None else self.trained_prior
        settings: dict[str, Any] = {"num_classes": num_classes, "positive": True}
        return (
            as_prior(source, name="source_prior", **settings),
            as_prior(trained, name="trained_prior", **settings),
        )

    def _check_fitted(self) -> None:
        if not hasattr(self, "_log_ratio"):
            raise RuntimeError(
                f"This {type(self).__name__} is not fitted. "
                "Call fit(logits, labels) with held-out source data first."
            )

    def _check_estimated(self) -> None:
        if not hasattr(self, "_samples"):
            raise RuntimeError(
                f"This {type(self).__name__} has no estimate yet. "
                "Call estimate(logits) with unlabelled data first."
            )

    def _sample_weights(self) -> Tensor:
        """Return how much each of the last samples counts, shape (N,)."""
        return torch.ones(self._samples.num_samples, dtype=torch.float64)

    def _report(self, num_iter: int, converged: bool) -> None:
        self.num_iter_, self.converged_ = num_iter, converged
        if not converged:
            warnings.warn(
                f"{type(self).__name__} has not converged after {num_iter} passes "
                "over the data; its estimate may be off. Raise max_iter.",
                calibration.ConvergenceWarning,
                stacklevel=4,
            )


ESTIMATORS: Registry[type[PriorEstimator]] = Registry("estimator", PriorEstimator)


def _positive(m: Tensor) -> Tensor:
    # A class whose posterior is 0 throughout is never divided by 0.
    return m.clamp_min(1e-30)


def _make_calibrator(calibrator: CalibratorLike) -> calibration.Calibrator | None:
    if isinstance(calibrator, str):
        return calibration.CALIBRATORS.get(calibrator)()
    return copy.deepcopy(calibrator)


def _warn_of_few(counts: Tensor) -> None:
    few = counts < FEW
    if few.any():
        fewest = int(counts.argmin())
        warnings.warn(
            f"`labels` has fewer than {FEW} samples of {int(few.sum())} of "
            f"{len(counts)} classes (the fewest: class {fewest} with "
            f"{int(counts[fewest])}); what is estimated of these classes relies on "
            "the model's own probabilities.",
            FewSamplesWarning,
            stacklevel=3,
        )


def _kind(logits: Logits) -> tuple[Logits, bool]:
    """Return the logits, and whether they are arrays, by the first chunk if chunks."""
    if hasattr(logits, "__array__") and not isinstance(logits, Tensor):
        logits = np.asarray(logits)  # a data frame would be read by its column names
    if isinstance(logits, Tensor | np.ndarray) or not isinstance(logits, Iterable):
        return logits, isinstance(logits, np.ndarray)
    chunks = iter(logits)
    first = next(chunks, None)
    if first is None:
        return [], False
    return chain([first], chunks), isinstance(first, np.ndarray)
