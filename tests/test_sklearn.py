"""PriorShiftClassifier: scikit-learn's own checks, real digits, and small data."""

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from tailshift.estimators import FewSamplesWarning
from tailshift.sklearn import PriorShiftClassifier, SingleSampleWarning
from tailshift.targets import as_target_prior

Floats = NDArray[np.float64]


@parametrize_with_checks([PriorShiftClassifier(LogisticRegression())])
def test_classifier__passes_the_checks_of_scikit_learn(
    estimator: Any, check: Any
) -> None:
    check(estimator)


def _gaussians(counts: list[int], seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    """Return samples around (0, 0), (2, 2), (4, 4) …, each class one cloud."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    return rng.normal(size=(len(y), 2)) + 2.0 * y[:, None], y


def _model(**settings: Any) -> PriorShiftClassifier:
    return PriorShiftClassifier(LogisticRegression(), **settings)


def _digits(direction: int, seed: int, taken: set[int]) -> NDArray[np.int64]:
    """Return a long tail of digits, ratio 20, that starts at 0 or at 9."""
    y = load_digits().target
    rng = np.random.default_rng(seed)
    chosen: list[int] = []
    for c in range(10):
        own = [i for i in rng.permutation(np.flatnonzero(y == c)) if i not in taken]
        rank = c if direction > 0 else 9 - c
        chosen += own[: int(80 * 20 ** (-rank / 9))]
    taken.update(chosen)
    return np.array(chosen)


def _accuracy(model: Any, x: Floats, y: NDArray[Any], **settings: Any) -> float:
    return float((model.predict(x, **settings) == y).mean())


@pytest.mark.filterwarnings("ignore::tailshift.estimators.FewSamplesWarning")
@pytest.mark.parametrize(
    "base",
    [
        LogisticRegression(C=0.01, max_iter=2000),
        RandomForestClassifier(50, random_state=0),
    ],
)
def test_adapt__helps_on_digits_that_shifted_and_harms_no_others(base: Any) -> None:
    """Over four draws the gains were 4 to 18 points, mean 13, and 19 to 28, mean 24."""
    x, y = load_digits(return_X_y=True)
    gains, num_refused = [], 0
    for seed in range(3):
        taken: set[int] = set()
        train, same, shifted = (_digits(d, seed, taken) for d in (1, 1, -1))
        model = PriorShiftClassifier(base).fit(x[train], y[train])
        before = _accuracy(model, x[shifted], y[shifted])
        before_same = _accuracy(model, x[same], y[same])
        model.adapt(x[same])
        assert _accuracy(model, x[same], y[same]) > before_same - 0.02

        model.adapt(x[shifted])
        truth = np.bincount(y[shifted]) / len(shifted)
        if model.adaptation_.status == "refused":  # by a test at 1 %
            num_refused += 1
            continue
        assert model.adaptation_.is_adapted
        assert np.abs(model.target_prior_ - truth).sum() < 0.25
        after = _accuracy(model, x[shifted], y[shifted])
        oracle = _accuracy(model, x[shifted], y[shifted], target_prior=truth)
        assert after > oracle - 0.03
        gains.append(after - before)
    assert num_refused <= 1
    assert min(gains) > 0
    assert np.mean(gains) > 0.08


def test_predict_proba__is_the_mean_of_clones_compensated() -> None:
    """Without calibration the clones' own probabilities, times p_t / p_s."""
    x, y = _gaussians([60, 20])
    model = _model(calibrator=None).fit(x, y)
    mean = np.mean([e.predict_proba(x) for e in model.estimators_], axis=0)
    expected = mean * np.array([0.1 / 0.75, 0.9 / 0.25])
    expected /= expected.sum(axis=1, keepdims=True)
    found = model.predict_proba(x, target_prior=[0.1, 0.9])
    np.testing.assert_allclose(found, expected, atol=1e-3)  # 10⁻⁴ of p_s is mixed in


def test_predict_proba__target_by_name_and_by_default() -> None:
    x, y = _gaussians([60, 20, 10])
    model = _model().fit(x, y)
    np.testing.assert_array_equal(
        model.predict_proba(x),
        model.predict_proba(x, target_prior=[60 / 90, 2 / 9, 1 / 9]),
    )
    np.testing.assert_allclose(
        model.predict_proba(x, target_prior="backward:4"),
        model.predict_proba(x, target_prior=np.array([1, 2, 4]) / 7),
    )
    model.target_prior_ = np.full(3, 1 / 3)
    np.testing.assert_allclose(
        model.predict_proba(x), model.predict_proba(x, target_prior="uniform")
    )


def test_predict_proba__takes_every_name_of_the_command_line() -> None:
    x, y = _gaussians([60, 20, 10])
    names = np.array(["ant", "bee", "cow"])
    model = _model().fit(x, names[y])
    for target, prior in {
        "permuted:50": as_target_prior("permuted:50", num_classes=3),
        "tweak:cow:0.5": [0.25, 0.25, 0.5],
        "knock_out:ant,bee": [0, 0, 1],
    }.items():
        np.testing.assert_allclose(
            model.predict_proba(x, target_prior=target),
            model.predict_proba(x, target_prior=prior),
        )


def test_predict_proba__means_what_it_says() -> None:
    """Calibrated on folds: a class has the mean probability of its share."""
    x, y = _gaussians([300, 100, 30])
    model = _model().fit(x, y)
    unseen, _ = _gaussians([3000, 1000, 300], seed=1)
    mean = model.predict_proba(unseen).mean(axis=0)
    np.testing.assert_allclose(mean, model.source_prior_, atol=0.02)


def test_predict_proba__follows_balanced_weights_back_to_the_source() -> None:
    """A clone that carries another prior is calibrated to the training data's."""
    x, y = _gaussians([900, 100])
    base = LogisticRegression(class_weight="balanced")
    model = PriorShiftClassifier(base).fit(x, y)
    raw = base.fit(x, y).predict_proba(x)[:, 1].mean()
    assert raw > 0.13
    assert abs(model.predict_proba(x)[:, 1].mean() - 0.1) < 0.01


def test_classes__are_labels_in_order() -> None:
    x, y = _gaussians([40, 30, 20])
    names = np.array(["zebra", "ant", "cat"])[y]
    model = _model().fit(x, names)
    assert model.classes_.tolist() == ["ant", "cat", "zebra"]
    np.testing.assert_allclose(model.source_prior_, [30 / 90, 20 / 90, 40 / 90])
    assert (model.predict(x) == names).mean() > 0.8
    only_ants = model.predict(x, target_prior=[1, 0, 0])
    assert set(only_ants) == {"ant"}


def test_classifier__clones_pickles_and_fits_again() -> None:
    x, y = _gaussians([60, 40, 20])
    model = _model(cv=3).fit(x, y)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(x), model.predict_proba(x))
    fresh = clone(model)
    assert fresh.get_params()["cv"] == 3
    assert not hasattr(fresh, "estimators_")
    assert len(model.estimators_) == 3
    model.adapt(x[y > 0])
    np.testing.assert_array_equal(model.fit(x, y).target_prior_, model.source_prior_)


def test_classifier__in_a_pipeline_and_a_grid_search() -> None:
    x, y = _gaussians([60, 40, 20])
    pipeline = make_pipeline(StandardScaler(), _model())
    search = GridSearchCV(
        pipeline,
        {
            "priorshiftclassifier__estimator__C": [0.1, 1.0],
            "priorshiftclassifier__calibrator": ["bcts", None],
        },
        cv=3,
        scoring="neg_log_loss",
    ).fit(x, y)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_score_ > -0.5
    best = search.best_estimator_
    best[-1].adapt(best[0].transform(x[y == 2]))
    assert best[-1].target_prior_[2] > 0.5


def test_fit__a_class_of_one_sample_is_never_held_out() -> None:
    x, y = _gaussians([40, 30, 1])
    with pytest.warns(SingleSampleWarning) as caught:
        model = _model().fit(x, y)
    assert str(caught[0].message) == (
        "1 of 3 classes have a single sample (the first: 2), which is trained "
        "on and never held out; what is calibrated and estimated of them relies on the "
        "model's own probabilities."
    )
    assert all(2 in e.classes_ for e in model.estimators_)
    assert np.isfinite(model.predict_proba(x)).all()
    with pytest.warns(FewSamplesWarning):
        model.adapt(_gaussians([5, 5, 90], seed=1)[0])
    assert np.isfinite(model.target_prior_).all()


@pytest.mark.filterwarnings("ignore::tailshift.sklearn.SingleSampleWarning")
def test_fit__nothing_to_hold_out() -> None:
    x, y = _gaussians([1, 1, 1])
    model = _model().fit(x, y)
    assert len(model.estimators_) == 1
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    with pytest.raises(ValueError, match="held-out") as error:
        model.adapt(x)
    assert str(error.value) == (
        "`adapt` needs held-out samples, but no class had two to hold one out. "
        "Fit on more data, or give predict_proba a target_prior."
    )


def test_fit__a_class_of_two_is_in_every_clone() -> None:
    x, y = _gaussians([30, 2])
    model = _model(cv=10).fit(x, y)
    assert all(e.classes_.tolist() == [0, 1] for e in model.estimators_)


@pytest.mark.parametrize("cv", [1, 0, 2.5, "five"])
def test_fit__refuses_a_number_of_folds(cv: Any) -> None:
    with pytest.raises(ValueError, match="cv") as error:
        _model(cv=cv).fit(*_gaussians([5, 5]))
    assert str(error.value) == (
        f"`cv` must be a number of folds, at least 2, but is {cv!r}."
    )


def test_fit__refuses_a_classifier_without_scores() -> None:
    with pytest.raises(TypeError) as error:
        PriorShiftClassifier(LinearRegression()).fit(*_gaussians([5, 5]))
    assert str(error.value) == (
        "`estimator` must be a classifier with predict_proba or decision_function, "
        "but LinearRegression has neither."
    )


def _agreement(model: Any, other: Any, x: Floats) -> float:
    return float((model.predict(x) == other.predict(x)).mean())


@pytest.mark.parametrize("counts", [[300, 100], [300, 100, 100]])
def test_fit__takes_scores_without_probabilities(counts: list[int]) -> None:
    """Of two classes `decision_function` has one column, the second's."""
    x, y = _gaussians(counts)
    model = PriorShiftClassifier(LinearSVC()).fit(x, y)
    reference = _model().fit(x, y)
    assert _agreement(model, reference, x) > 0.95
    mean = model.predict_proba(x).mean(axis=0)
    np.testing.assert_allclose(mean, model.source_prior_, atol=0.02)

    shifted, labels = _gaussians(counts[::-1], seed=1)
    truth = np.bincount(labels) / len(labels)
    found = model.adapt(shifted).target_prior_
    np.testing.assert_allclose(found, truth, atol=0.1)  # three are not on one side


def test_fit__scores_of_any_size_stay_finite() -> None:
    """Uncalibrated scores are logits: of two classes 0 and the one that is given."""
    x, y = _gaussians([60, 20])
    model = PriorShiftClassifier(LinearSVC(), calibrator=None).fit(1e4 * x, y)
    scores = np.array([e.decision_function(1e7 * x) for e in model.estimators_])
    assert np.abs(scores).max() > 1000
    probs = model.predict_proba(1e7 * x)
    assert np.isfinite(probs).all()
    expected = (1 / (1 + np.exp(-scores.clip(-500, 500)))).mean(axis=0)
    np.testing.assert_allclose(probs[:, 1], expected, atol=1e-9)


def test_fit__refuses_a_score_a_pair() -> None:
    x, y = _gaussians([9, 9, 9, 9])
    with pytest.raises(ValueError, match="score") as error:
        PriorShiftClassifier(SVC(decision_function_shape="ovo")).fit(x, y)
    assert str(error.value) == (
        "`estimator` must give one score a class, but its decision_function has the "
        "shape (8, 6) for 4 classes. A support vector machine does with "
        "decision_function_shape='ovr'."
    )


def test_fit__passes_weights_on_and_counts_them() -> None:
    """Weights of a class: as the prior of that mix, which compensation knows."""
    x, y = _gaussians([600, 200])
    weights = np.where(y == 0, 1.0, 9.0)
    model = _model(calibrator=None).fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(model.source_prior_, [0.25, 0.75])
    direct = LogisticRegression().fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(
        model.predict_proba(x), direct.predict_proba(x), atol=0.02
    )
    plain = _model().fit(x, y)
    for target in ([0.75, 0.25], "uniform"):
        for calibrator in (None, "bcts", "temperature"):
            weighted = _model(calibrator=calibrator).fit(x, y, sample_weight=weights)
            gap = weighted.predict_proba(x, target_prior=target)
            gap -= plain.predict_proba(x, target_prior=target)
            assert np.abs(gap).mean() < 0.02
    shifted, _ = _gaussians([100, 700], seed=1)
    found = model.adapt(shifted).target_prior_
    np.testing.assert_allclose(found, plain.adapt(shifted).target_prior_, atol=0.02)


def test_fit__passes_weights_on_to_a_step() -> None:
    x, y = _gaussians([60, 20])
    weights = np.where(y == 0, 1.0, 9.0)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    model = PriorShiftClassifier(pipeline)
    model.fit(x, y, logisticregression__sample_weight=weights)
    np.testing.assert_allclose(model.source_prior_, [0.25, 0.75])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            [1.0] * 9,
            "`sample_weight` must have one entry a sample (18), but has the shape "
            "(9,).",
        ),
        (
            [1.0] * 9 + [0.0] * 9,
            "`sample_weight` must be at least 0 and above 0 in every class, but its "
            "smallest entry is 0 and class 1 has 0 in all.",
        ),
    ],
)
def test_fit__refuses_weights(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match="sample_weight") as error:
        _model().fit(*_gaussians([9, 9]), sample_weight=weights)
    assert str(error.value) == message


def test_adapt__of_a_pipeline_that_ends_in_it() -> None:
    x, y = _gaussians([600, 200])
    shifted, _ = _gaussians([100, 700], seed=1)
    pipeline = make_pipeline(StandardScaler(), _model()).fit(x, y)
    before = pipeline.predict_proba(shifted)[:, 1].mean()
    pipeline[-1].adapt(pipeline[:-1].transform(shifted))
    np.testing.assert_allclose(pipeline[-1].target_prior_, [1 / 8, 7 / 8], atol=0.04)
    after = pipeline.predict_proba(shifted)[:, 1].mean()
    assert before + 0.01 < after
    np.testing.assert_allclose(after, 7 / 8, atol=0.04)


def test_predict_proba__refuses_a_prior_of_another_length() -> None:
    model = _model().fit(*_gaussians([9, 9]))
    with pytest.raises(ValueError, match="entries") as error:
        model.predict_proba([[0.0, 0.0]], target_prior=[1.0, 0.0, 0.0])
    assert str(error.value) == (
        "`target_prior` has 3 entries but `logits` has 2 classes."
    )
