"""A scikit-learn classifier with scores, re-targeted to another prior."""

import math
import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import (
    _safe_indexing,
    assert_all_finite,
    indexable,
    metadata_routing,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from tailshift.calibration import CALIBRATORS
from tailshift.compensation import post_compensate
from tailshift.deprecation import renamed_arguments
from tailshift.estimators import Adaptation, adapt
from tailshift.estimators.base import CalibratorLike
from tailshift.estimators.map_em import MAPEstimator
from tailshift.predictions import Predictions
from tailshift.priors import from_counts
from tailshift.sklearn.counting import CountingEstimator
from tailshift.sklearn.folds import ALWAYS_TRAINED, fold_parts
from tailshift.targets import Target, as_target_prior

_SMOOTHING = 1e-4  # share of the source prior in all probabilities: 0 is not for ever
SCORES = ("predict_proba", "decision_function")
_AFTER_SAMPLING = "after sampling"


class SingleSampleWarning(UserWarning):
    """A class has one sample, which cannot be held out."""


class PriorShiftClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A classifier whose probabilities can be re-targeted to another prior.

    ``fit`` trains ``cv`` clones of the estimator, each without one fold, and calibrates
    on what each says of the fold that it has not seen. Predictions are the mean of
    their calibrated probabilities :math:`p(y|x)`, compensated:

    .. math:: p_t(y|x) \propto p(y|x) \, p_t(y) / p_s(y)

    A pipeline that ends in it adapts its last step, on what the steps before give:
    ``pipeline[-1].adapt(pipeline[:-1].transform(X))``.

    Args:
        estimator: Any classifier with ``predict_proba``, or with a
            ``decision_function`` whose scores are taken as logits, one a class or one
            column for two classes; these need a calibrator to be probabilities.
        calibrator: ``"auto"`` (chosen by cross-validation), ``"bcts"``,
            ``"temperature"``, ``"vector"`` or None for none.
        cv: Number of folds, at least 2.
        random_state: Seed of the folds.
        logit_prior: The prior of each clone's probabilities, if it
            is not that of the (weighted) samples in ``fit``. ``"after sampling"`` is
            what the samplers of a pipeline of imbalanced-learn made for its last step,
            clone by clone; otherwise a prior (C,), a name or a file, such as
            ``"uniform"`` for a ``BalancedRandomForestClassifier``. Probabilities are
            then brought back to the samples as they are. A
            ``CalibratedClassifierCV`` around such a pipeline has undone the sampling
            already; as its last step it has not.

    Attributes:
        classes_: The labels, sorted: the order of all priors and probabilities.
        source_prior_: :math:`p_s`, the share of each class in ``fit``, by weight if
            samples are weighted, shape (C,).
        target_prior_: :math:`p_t` to answer for: :math:`p_s` until ``adapt``.
        logit_priors_: The mix that each clone answers for by itself, shape (k, C).
        adaptation_: What ``adapt`` found; its ``reason`` is a sentence.
        estimators_: The fitted clones.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1], [900, 100])
        >>> X = rng.normal(size=(1000, 2)) + 1.5 * y[:, None]
        >>> model = PriorShiftClassifier(LogisticRegression()).fit(X, y)
        >>> X_new = (
        ...     rng.normal(size=(500, 2)) + 1.5 * np.repeat([0, 1], [100, 400])[:, None]
        ... )
        >>> model.adapt(X_new).target_prior_.round(1)
        array([0.2, 0.8])
        >>> model.predict_proba([[0.75, 0.75]], target_prior="uniform").round(1)
        array([[0.5, 0.5]])
    """

    @renamed_arguments(trained_prior="logit_prior")
    def __init__(
        self,
        estimator: Any,
        *,
        calibrator: CalibratorLike = "auto",
        cv: int = 5,
        random_state: int = 0,
        logit_prior: Target | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.random_state = random_state
        self.logit_prior = logit_prior

    def get_metadata_routing(self) -> Any:
        """Return where ``fit`` sends what it is given, for scikit-learn's routing."""
        router = metadata_routing.MetadataRouter(owner=self)
        to_fit = metadata_routing.MethodMapping().add(caller="fit", callee="fit")
        return router.add(estimator=self.estimator, method_mapping=to_fit)

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:  # noqa: N803 (scikit-learn's name)
        """Train, and calibrate on folds left out.

        Args:
            X: Samples.
            y: Labels of any kind.
            fit_params: Arguments for the ``fit`` of each clone, sent on as the clone
                has requested if metadata routing is enabled. ``sample_weight`` (of a
                pipeline, ``STEP__sample_weight``) has one entry a sample, of which each
                clone gets its own; what is trained on is then the weighted prior,
                so ``source_prior_`` is the share of each class in the weights. What is
                calibrated and estimated counts held-out samples as they are: weights
                per class are undone exactly, and those that differ inside a class only
                as far as calibration makes up for them.
        """
        self._check_settings()
        if get_config()["enable_metadata_routing"]:
            routed = metadata_routing.process_routing(self, "fit", **fit_params)
            fit_params = routed.estimator.fit
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        X, y = indexable(X, y)  # noqa: N806
        self.classes_, labels = np.unique(y, return_inverse=True)
        counts = np.bincount(labels, minlength=len(self.classes_))
        self._counts = torch.from_numpy(counts)
        self._drawn_prior = from_counts(self._counts).numpy()
        self.source_prior_ = self._weighted_prior(labels, fit_params)
        if self.logit_prior is not None:  # samplers and such do not know of weights
            self.source_prior_ = self._drawn_prior
        self.target_prior_ = self.source_prior_
        self._held_out = self._cross_fit(X, y, labels, fit_params)
        self._calibrate()
        self._follow_features()
        return self

    def _cross_fit(
        self,
        X: Any,  # noqa: N803
        y: NDArray[Any],
        labels: NDArray[np.int64],
        fit_params: dict[str, Any],
    ) -> Predictions | None:
        """Train the clones, and return what they say of samples they have not seen."""
        folds = self._folds(labels)
        log_p = np.zeros((len(labels), len(self.classes_)))
        self.estimators_, logit_priors = [], []
        for seen, left_out in fold_parts(folds):
            own = {
                name: _safe_indexing(value, seen) if _is_weight(name) else value
                for name, value in fit_params.items()
            }
            fitted, p = self._fit_clone(_safe_indexing(X, seen), y[seen], own)
            self.estimators_.append(fitted)
            logit_priors.append(p)
            if len(left_out):
                log_p[left_out] = self._log_probs(
                    fitted, p, _safe_indexing(X, left_out)
                )
        self.logit_priors_ = np.stack(logit_priors)  # (k, C)
        held_out = folds != ALWAYS_TRAINED
        if not held_out.any():
            return None
        return Predictions(
            torch.from_numpy(log_p[held_out]),
            torch.from_numpy(labels[held_out]),
            source_counts=self._counts,
            logit_prior=torch.from_numpy(self._drawn_prior),
        )

    def _fit_clone(
        self,
        X: Any,  # noqa: N803
        y: NDArray[Any],
        fit_params: dict[str, Any],
    ) -> tuple[Any, NDArray[np.float64]]:
        """Return a fitted clone, and the mix that its probabilities answer for."""
        fitted = clone(self.estimator)
        if self.logit_prior is None:
            return fitted.fit(X, y, **fit_params), self.source_prior_
        if not _is_after_sampling(self.logit_prior):
            p = self._target(self.logit_prior).numpy()
            return fitted.fit(X, y, **fit_params), p
        name, last = fitted.steps[-1]
        counting = CountingEstimator(last)
        fitted.steps[-1] = (name, counting)
        fitted.fit(X, y, **fit_params)
        fitted.steps[-1] = (name, counting.estimator)
        counts = np.array([(counting.labels == c).sum() for c in self.classes_])
        if not counts.all():
            raise ValueError(
                "`estimator` must leave samples of every class, but its sampler left "
                f"none of class {self.classes_[counts.argmin()]}."
            )
        return fitted, counts / counts.sum()

    def adapt(self, X: Any) -> Self:  # noqa: N803
        """Estimate the prior of unlabelled data, and re-target to it from now on.

        If the data do not support an estimate the mix of the samples in ``fit``,
        each counted once, is kept; ``adaptation_.reason`` says why.

        Args:
            X: Unlabelled samples of the target, as for ``predict``.
        """
        check_is_fitted(self)
        if self._held_out is None:
            raise ValueError(
                "`adapt` needs held-out samples, but no class had two to hold one out. "
                "Fit on more data, or give predict_proba a target_prior."
            )
        p_s = torch.from_numpy(self._drawn_prior)
        settings: dict[str, Any] = {"logit_prior": p_s, "source_prior": p_s}
        estimator = MAPEstimator(calibrator=self.calibrator, **settings)
        self.adaptation_: Adaptation = adapt(
            self._held_out,
            torch.from_numpy(self._one_clone_each(X)),
            estimator=estimator,
        )
        self.target_prior_ = self.adaptation_.target_prior.numpy()
        return self

    def predict_proba(
        self,
        X: Any,  # noqa: N803
        *,
        target_prior: Target | None = None,
    ) -> NDArray[np.float64]:
        """Return probabilities (N, C) that answer for a class distribution.

        Args:
            X: Samples.
            target_prior: :math:`p_t` in the order of ``classes_``, shape (C,); a name
                (``"uniform"``, ``"backward:10"``, ``"tweak:LABEL:0.5"`` …, see
                :class:`~tailshift.target_names.Shift`); a file of counts or shares; or
                None for ``target_prior_``.
        """
        check_is_fitted(self)
        log_p = torch.stack(
            [self._calibrated(log_p) for log_p in self._clones_log_probs(X)]
        )  # (k, N, C)
        compensated = post_compensate(
            log_p.logsumexp(dim=0) - math.log(len(log_p)),  # the log of the mean
            logit_prior=self._drawn_prior,
            target_prior=self._target(target_prior),
        )
        return compensated.softmax(dim=1).numpy()

    def predict(
        self,
        X: Any,  # noqa: N803
        *,
        target_prior: Target | None = None,
    ) -> NDArray[Any]:
        """Return the likeliest label of each sample under a class distribution."""
        best = self.predict_proba(X, target_prior=target_prior).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags  # since scikit-learn 1.6, which calls this

        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        return tags

    def _check_settings(self) -> None:
        steps = getattr(self.estimator, "steps", [])
        has_sampler = any(hasattr(step, "fit_resample") for _, step in steps)
        if _is_after_sampling(self.logit_prior) and not has_sampler:
            raise TypeError(
                "`estimator` must be a pipeline with a sampler for `logit_prior` "
                f"'after sampling', but {type(self.estimator).__name__} is none. Give "
                "the mix itself, or leave `logit_prior` out."
            )
        if not any(hasattr(self.estimator, name) for name in SCORES):
            raise TypeError(
                "`estimator` must be a classifier with predict_proba or "
                f"decision_function, but {type(self.estimator).__name__} has neither."
            )
        if not (isinstance(self.cv, int | np.integer) and self.cv >= 2):
            raise ValueError(
                f"`cv` must be a number of folds, at least 2, but is {self.cv!r}."
            )

    def _weighted_prior(
        self, labels: NDArray[np.int64], fit_params: dict[str, Any]
    ) -> NDArray[np.float64]:
        """Return the share of each class in what the clones are trained on."""
        given = [value for name, value in fit_params.items() if _is_weight(name)]
        if not given or given[0] is None:
            return self._drawn_prior
        weights = np.asarray(given[0], dtype=np.float64)
        if weights.shape != labels.shape:
            raise ValueError(
                f"`sample_weight` must have one entry a sample ({len(labels)}), but "
                f"has the shape {weights.shape}."
            )
        assert_all_finite(weights, input_name="sample_weight")
        sums = np.bincount(labels, weights)
        if weights.min() < 0 or sums.min() <= 0:
            raise ValueError(
                "`sample_weight` must be at least 0 and above 0 in every class, but "
                f"its smallest entry is {weights.min():g} and class "
                f"{self.classes_[sums.argmin()]} has {sums.min():g} in all."
            )
        prior: NDArray[np.float64] = sums / sums.sum()
        return prior

    def _folds(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each sample's fold; a class's only sample is never held out."""
        order = np.random.default_rng(self.random_state).permutation(len(labels))
        by_class = order[np.argsort(labels[order], kind="stable")]
        folds = np.empty(len(labels), np.int64)
        folds[by_class] = np.arange(len(labels)) % self.cv
        counts = self._counts.numpy()
        single = counts[labels] == 1
        folds[single] = ALWAYS_TRAINED
        if single.any():
            name = self.classes_[labels[single.argmax()]]
            warnings.warn(
                f"{int(single.sum())} of {len(counts)} classes have a single sample "
                f"(the first: {name}), which is trained on and never held out; what "
                "is calibrated and estimated of them relies on the model's own "
                "probabilities.",
                SingleSampleWarning,
                stacklevel=3,
            )
        return folds

    def _clones_log_probs(self, X: Any) -> Iterator[NDArray[np.float64]]:  # noqa: N803
        for fitted, p in zip(self.estimators_, self.logit_priors_, strict=True):
            yield self._log_probs(fitted, p, X)

    def _log_probs(
        self,
        fitted: Any,
        logit_prior: NDArray[np.float64],
        X: Any,  # noqa: N803
    ) -> NDArray[np.float64]:
        """Return one clone's log probabilities, none of them 0.

        They answer for the mix of the samples as they are, as held-out ones are
        counted: a clone trained on weighted or resampled ones carries another.
        """
        if hasattr(fitted, "predict_proba"):
            p = np.asarray(fitted.predict_proba(X), dtype=np.float64)
            log_p = np.log((1 - _SMOOTHING) * p + _SMOOTHING * logit_prior)
        else:
            log_p = self._as_logits(fitted.decision_function(X))
        shift: NDArray[np.float64] = np.log(self._drawn_prior / logit_prior)
        return log_p + shift

    def _as_logits(self, scores: Any) -> NDArray[np.float64]:
        """Return scores (N, C); of two classes scikit-learn gives only the second's."""
        f = np.asarray(scores, dtype=np.float64)
        if f.size == len(f) and len(self.classes_) == 2:
            return np.column_stack([np.zeros(len(f)), f.ravel()])
        if f.shape != (len(f), len(self.classes_)):
            raise ValueError(
                "`estimator` must give one score a class, but its decision_function "
                f"has the shape {f.shape} for {len(self.classes_)} classes. A support "
                "vector machine does with decision_function_shape='ovr'."
            )
        return f

    def _one_clone_each(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return each sample's log probabilities by one clone.

        A held-out sample is judged by the clone that has not seen it; were these judged
        by all, the two would differ without any shift.
        """
        log_p = np.stack(list(self._clones_log_probs(X)))  # (k, N, C)
        rng = np.random.default_rng(self.random_state)
        chosen = rng.permutation(log_p.shape[1]) % len(log_p)
        rows: NDArray[np.float64] = log_p[chosen, np.arange(len(chosen))]
        return rows

    def _calibrate(self) -> None:
        self.calibrator_ = None
        if self._held_out is None or self.calibrator is None:
            return
        calibrator = self.calibrator
        fresh = (
            CALIBRATORS.get(calibrator)()
            if isinstance(calibrator, str)
            else clone(calibrator, safe=False)
        )
        self.calibrator_ = fresh.fit(self._held_out.logits, self._held_out.labels)

    def _calibrated(self, log_p: NDArray[np.float64]) -> Tensor:
        f = torch.from_numpy(log_p)
        if self.calibrator_ is not None:
            f = self.calibrator_.transform(f)
        return f.log_softmax(dim=1)

    def _target(self, target_prior: Target | None) -> Tensor:
        if target_prior is None:
            return torch.from_numpy(self.target_prior_)
        return as_target_prior(
            target_prior,
            num_classes=len(self.classes_),
            source_counts=self._counts,
            class_names=[str(label) for label in self.classes_],
        )

    def _follow_features(self) -> None:
        """Say of the features what the clones say, if they say it."""
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                delattr(self, name)
            if hasattr(self.estimators_[0], name):
                setattr(self, name, getattr(self.estimators_[0], name))


def _is_after_sampling(logit_prior: Any) -> bool:
    return isinstance(logit_prior, str) and logit_prior == _AFTER_SAMPLING


def _is_weight(name: str) -> bool:
    return name.split("__")[-1] == "sample_weight"
