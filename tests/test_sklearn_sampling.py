"""PriorShiftClassifier around imbalanced-learn's samplers, and metadata routing."""

from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline as make_plain_pipeline
from sklearn.preprocessing import StandardScaler

from tailshift.sklearn import PriorShiftClassifier

imblearn = pytest.importorskip("imblearn", reason="imbalanced-learn is not installed")
COUNTS = [300, 60, 20]


def _data(counts: list[int] = COUNTS, seed: int = 0) -> tuple[Any, Any]:
    y = np.repeat(np.array(["a", "b", "c"]), counts)
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(y), 2)) + 1.5 * np.repeat([0, 1, 2], counts)[:, None], y


def _pipeline(last: Any, **sampled: int) -> Any:
    """Oversample to the given counts, or to equal ones."""
    sampler = imblearn.over_sampling.RandomOverSampler(
        sampling_strategy=sampled or "auto", random_state=0
    )
    return imblearn.pipeline.make_pipeline(StandardScaler(), sampler, last)


@pytest.mark.parametrize("sampled", [{}, {"b": 200, "c": 100}])
@pytest.mark.parametrize("calibrated", [False, True])
def test_after_sampling__brings_probabilities_back(
    sampled: dict[str, int], calibrated: bool
) -> None:
    """By hand, clone by clone; the smoothing share is 1e-4."""
    last: Any = LogisticRegression()
    last = CalibratedClassifierCV(last, cv=3) if calibrated else last
    x, y = _data()
    model = PriorShiftClassifier(
        _pipeline(last, **sampled), calibrator=None, logit_prior="after sampling"
    ).fit(x, y)
    p_s = np.array(COUNTS) / sum(COUNTS)
    n = np.array([240, sampled.get("b", 240), sampled.get("c", 240)])  # a fold is out
    assert model.logit_priors_ == pytest.approx(np.tile(n / n.sum(), (5, 1)))
    assert model.source_prior_ == pytest.approx(p_s)
    by_hand = []
    for fitted in model.estimators_:
        assert not hasattr(fitted[-1], "labels")  # the last step is the user's own
        p = 0.9999 * fitted.predict_proba(x) + 0.0001 * n / n.sum()
        p = p * p_s / (n / n.sum())
        by_hand.append(p / p.sum(1, keepdims=True))
    assert model.predict_proba(x) == pytest.approx(np.mean(by_hand, 0), abs=1e-12)


def test_after_sampling__is_as_calibrated_as_without_a_sampler() -> None:
    x, y = _data()
    x_new, y_new = _data([3000, 600, 200], seed=1)
    losses = {}
    for name, prior in (("undone", "after sampling"), ("taken as is", None)):
        pipeline = _pipeline(LogisticRegression())
        model = PriorShiftClassifier(pipeline, calibrator=None, logit_prior=prior)
        p = model.fit(x, y).predict_proba(x_new)
        true = p[np.arange(len(p)), np.searchsorted(model.classes_, y_new)]
        losses[name] = -np.log(true).mean()
    plain = PriorShiftClassifier(LogisticRegression(), calibrator=None).fit(x, y)
    p = plain.predict_proba(x_new)
    best = -np.log(p[np.arange(len(p)), np.searchsorted(plain.classes_, y_new)]).mean()
    assert losses["undone"] < best + 0.02 < losses["taken as is"] - 0.1


def test_after_sampling__a_calibrated_pipeline_has_undone_it() -> None:
    calibrated = CalibratedClassifierCV(_pipeline(LogisticRegression()), cv=3)
    x, y = _data()
    model = PriorShiftClassifier(calibrated).fit(x, y)
    assert model.predict_proba(x).mean(0) == pytest.approx(
        model.source_prior_, abs=0.01
    )
    model = clone(model).set_params(logit_prior="after sampling")
    with pytest.raises(TypeError) as error:
        model.fit(x, y)
    assert str(error.value) == (
        "`estimator` must be a pipeline with a sampler for `logit_prior` 'after "
        "sampling', but CalibratedClassifierCV is none. Give the mix itself, or leave "
        "`logit_prior` out."
    )


def test_logit_prior__given_by_name() -> None:
    x, y = _data()
    balanced = LogisticRegression(class_weight="balanced")
    model = PriorShiftClassifier(balanced, calibrator=None, logit_prior="uniform")
    model.fit(x, y)
    assert model.logit_priors_ == pytest.approx(np.full((5, 3), 1 / 3))
    assert model.predict_proba(x).mean(0) == pytest.approx(
        model.source_prior_, abs=0.02
    )


def test_metadata_routing__weights_reach_the_clones_of_a_search() -> None:
    x, y = _data()
    weights = np.where(y == "a", 1.0, 5.0)
    plain = PriorShiftClassifier(LogisticRegression(), cv=2, calibrator="bcts")
    expected = plain.fit(x, y, sample_weight=weights).predict_proba(x)
    with config_context(enable_metadata_routing=True):
        inner = LogisticRegression().set_fit_request(sample_weight=True)
        for last in (inner, make_plain_pipeline(inner)):
            model = PriorShiftClassifier(last, cv=2)
            search = GridSearchCV(model, {"calibrator": ["bcts"]}, cv=2)
            search.fit(x, y, sample_weight=weights)
            assert search.best_estimator_.predict_proba(x) == pytest.approx(expected)
        asked = PriorShiftClassifier(LogisticRegression())
        with pytest.raises(Exception, match="sample_weight") as error:
            asked.fit(x, y, sample_weight=weights)
        assert type(error.value).__name__ == "UnsetMetadataPassedError"
