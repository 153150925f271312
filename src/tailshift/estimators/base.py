"""Base class of the estimators: priors, calibration and intervals."""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import chain
from typing import Any, Self, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift import calibration
from tailshift.checks import ArrayLike, as_tensor, check_logits, check_sample_labels
from tailshift.compensation import log_prior_ratio
from tailshift.deprecation import renamed_arguments, renamed_attribute
from tailshift.estimators.posteriors import (
    SUMMED_ELEMENTS,
    Logits,
    Posteriors,
    effective_samples,
)
from tailshift.estimators.replicates import (
    RIDGE,
    Replicates,
    Sample,
    prior_interval,
)
from tailshift.priors import VectorLike, as_prior, from_counts
from tailshift.registry import Registry

FEW = 5  # held-out samples below which a class's share cannot be told well
COUNT_SMOOTHING = 0.5  # a class, added to each held-out count
SAME_PRIOR_P_VALUE = 0.01  # below, held-out labels are not a sample of the source
NUM_SIMULATIONS = 300

CalibratorLike: TypeAlias = calibration.Calibrator | str | None


class FewSamplesWarning(UserWarning):
    """The held-out data has too few samples of a class to tell its share."""


class PriorEstimator(ABC):
    r"""Estimates a target prior from unlabelled logits.

    ``fit`` re-targets held-out logits from the logit prior to the prior of the held-out
    data, :math:`f - \log p_{trained} + \log p_h`, and then calibrates them. The mean
    calibrated posterior on the held-out data is the denominator of the likelihood
    ratio. The held-out prior is the source prior unless the held-out labels contradict
    it: validation sets are often class-balanced while the training data are not.

    Args:
        logit_prior: The prior that the logits carry, positive, shape (C,). By default
            the source prior.
        source_prior: :math:`p_s`, positive, shape (C,). By default the share of each
            class among the held-out labels, smoothed.
        calibrator: ``"auto"`` (chosen by cross-validation), ``"bcts"``,
            ``"temperature"``, ``"vector"``, an object with ``fit`` and ``transform`` (a
            copy of it is fitted), or None for no calibration.

    Attributes:
        source_prior_: :math:`p_s`, shape (C,).
        held_out_prior_: :math:`p_h`, which the posteriors hold for, shape (C,).
        logit_prior_: The prior that logits carry, shape (C,).
        calibrator_: The fitted calibrator.
        denominator_: Mean calibrated posterior on the held-out data, shape (C,).
        prior_: The last estimate, shape (C,).
        num_iter_: Passes over the unlabelled data that the last estimate took.
        converged_: Whether it converged.
    """

    prior_: Tensor
    _samples: Posteriors
    _replicates: Replicates | None
    _prior_draws: Tensor | None

    trained_prior = renamed_attribute("trained_prior", "logit_prior")
    trained_prior_ = renamed_attribute("trained_prior_", "logit_prior_")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let constructors of subclasses take the old names of arguments."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            accept_old = renamed_arguments(trained_prior="logit_prior")
            cls.__init__ = accept_old(cls.__init__)  # type: ignore[method-assign]

    @renamed_arguments(trained_prior="logit_prior")
    def __init__(
        self,
        *,
        logit_prior: VectorLike | None = None,
        source_prior: VectorLike | None = None,
        calibrator: CalibratorLike = "auto",
    ) -> None:
        self.logit_prior = logit_prior
        self.source_prior = source_prior
        self.calibrator = calibrator

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> Self:
        """Learn from held-out source data: logits (N, C) and labels (N,)."""
        f = check_logits(as_tensor(logits, "logits").cpu())
        y = check_sample_labels(as_tensor(labels, "labels").cpu(), f)
        num_classes = f.shape[1]
        self.counts_ = torch.bincount(y, minlength=num_classes)
        _warn_of_few(self.counts_)
        self.source_prior_, self.logit_prior_ = self._priors(num_classes)
        self.held_out_prior_ = held_out_prior(self.counts_, self.source_prior_)
        self._log_ratio = log_prior_ratio(
            self.logit_prior_, self.held_out_prior_, num_classes=num_classes
        )
        self.calibrator_ = _make_calibrator(self.calibrator)
        if isinstance(self.calibrator_, calibration.Scaling):
            self.calibrator_.fit_shifted(f, y, self._log_ratio)
        elif self.calibrator_ is not None:
            self.calibrator_.fit(self._at_held_out(f), y)
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
        # A copy, so that two threads do not write to one estimator's attributes.
        worker = copy.copy(self)
        worker._samples = Posteriors(chunks, self.posterior, len(self.denominator_))
        worker._replicates = worker._prior_draws = None
        worker.prior_ = prior = worker._estimate(worker._samples)
        self.__dict__.update(worker.__dict__)
        return prior.numpy() if is_numpy else prior

    @property
    def replicates_(self) -> Replicates:
        """Draws of calibrator and prior around the last estimate."""
        self._check_estimated()
        if self._replicates is None:
            ridge = getattr(self.calibrator_, "ridge", 0.0) or RIDGE
            self._replicates = Replicates(
                Sample.of(self._samples, self._sample_weights()),
                held_out := Sample.of(self._held_out),
                self.labels_[held_out.rows],
                self.prior_,
                ridge=min(ridge, RIDGE),
            )
        return self._replicates

    @property
    def prior_draws_(self) -> Tensor:
        """Target priors of the replicates, by likelihood alone, shape (B, C)."""
        if self._prior_draws is None:
            self._prior_draws = torch.cat([part.prior for part in self.replicates_])
        return self._prior_draws

    @property
    def interval_(self) -> Tensor:
        """95 % interval of the last estimate: lower and upper end, shape (2, C).

        It comes from the likelihood of replicates in which the calibrator, the mean
        posterior and the prior are fitted again, and is widened to contain the
        estimate. It is computed when you first ask for it.
        """
        self._check_estimated()
        return prior_interval(self.prior_draws_, self.prior_, self._samples.num_samples)

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
        """Return calibrated posteriors for the held-out prior, float64, (N, C)."""
        self._check_fitted()
        f = check_logits(as_tensor(logits, "logits").cpu())
        if f.shape[1] != len(self._log_ratio):
            raise ValueError(
                f"`logits` has {f.shape[1]} classes, "
                f"but the estimator was fitted on {len(self._log_ratio)}."
            )
        g = self._at_held_out(f)
        if self.calibrator_ is not None:
            g = self.calibrator_.transform(g)
        return g.softmax(dim=1)

    @abstractmethod
    def _estimate(self, samples: Posteriors) -> Tensor:
        """Return the prior (C,); sets ``num_iter_`` and ``converged_``."""

    def _at_held_out(self, f: Tensor) -> Tensor:
        return f.double() + self._log_ratio

    def _priors(self, num_classes: int) -> tuple[Tensor, Tensor]:
        source = self.source_prior
        if source is None:
            source = from_counts(self.counts_ + COUNT_SMOOTHING)
        trained = source if self.logit_prior is None else self.logit_prior
        settings: dict[str, Any] = {"num_classes": num_classes, "positive": True}
        return (
            as_prior(source, name="source_prior", **settings),
            as_prior(trained, name="logit_prior", **settings),
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


def held_out_prior(counts: Tensor, source_prior: Tensor) -> Tensor:
    """Return the prior of held-out data: the source prior unless labels contradict it.

    A likelihood-ratio test, whose null distribution is simulated, compares the counts
    with the source prior. If it rejects, the prior is the share of each class among
    the labels, smoothed towards the source prior.

    Args:
        counts: Held-out labels of each class, shape (C,).
        source_prior: :math:`p_s`, positive, shape (C,).

    Example:
        >>> held_out_prior(torch.tensor([50, 50]), torch.tensor([0.9, 0.1]).double())
        tensor([0.5040, 0.4960], dtype=torch.float64)
    """
    n, expected = int(counts.sum()), counts.sum() * source_prior
    rng = np.random.default_rng(0)
    p = source_prior.numpy()
    simulated = rng.multinomial(n, p / p.sum(), size=NUM_SIMULATIONS)
    drawn = torch.cat([counts[None], torch.from_numpy(simulated)]).double()
    statistics = torch.xlogy(drawn, drawn / expected).sum(dim=1)
    p_value = (statistics >= statistics[0] - 1e-9).double().mean()
    if p_value > SAME_PRIOR_P_VALUE:
        return source_prior
    smoothed = counts + COUNT_SMOOTHING * len(counts) * source_prior
    return smoothed / smoothed.sum()


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
