"""Checks of scores, labels and counts: whole sentences, and no copies."""

import numpy as np
import pytest
import torch

import tailshift as ts
from tailshift import metrics
from tailshift.calibration import TemperatureScaling
from tailshift.checks import as_tensor, check_counts, check_logits, check_probs
from tailshift.estimators import EMEstimator, shift_test
from tailshift.losses import LADELoss

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, -torch.inf, 4.0]])


def test_check_counts__refuses_a_matrix():
    with pytest.raises(ValueError, match="vector") as error:
        check_counts(torch.ones(2, 2, dtype=torch.int64))
    assert str(error.value) == (
        "`class_counts` must be a vector with one entry a class, but has shape (2, 2)."
    )


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (
            [[0.5, 0.6]],
            "Rows of `probs` must sum to 1, but row 0 (from 0) sums to 1.1000.",
        ),
        ([[1.5, 0.5]], "`probs` must lie in [0, 1], but holds 1.5. Are these logits?"),
        (
            [[0.5, -0.5]],
            "`probs` must lie in [0, 1], but holds -0.5. Are these logits?",
        ),
        (
            [[0.5, torch.nan]],
            "`probs` must be finite or −inf, but row 0 (from 0) holds nan.",
        ),
    ],
)
def test_check_probs__refuses_with_a_sentence(probs, message):
    with pytest.raises(ValueError, match="probs") as error:
        check_probs(torch.tensor(probs))
    assert str(error.value) == message


def test_check_probs__takes_many_half_precision_classes():
    probs = torch.randn(20, 8142).softmax(dim=1).half()
    assert check_probs(probs) is not None


def test_as_tensor__shares_memory_where_it_can():
    array = np.zeros((2, 3), dtype=np.float32)
    assert as_tensor(array, "logits").data_ptr() == array.ctypes.data


def test_check_logits__makes_no_copy():
    assert check_logits(LOGITS).data_ptr() == LOGITS.data_ptr()


LABELS = np.array([0, 1, 2, 2, 1, 0] * 40)
SCORES = np.random.default_rng(0).normal(size=(240, 3)) + 2 * np.eye(3)[LABELS]
PRIOR = np.array([0.5, 0.3, 0.2])


def _read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def _frame(array):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(array) if array.ndim == 2 else pandas.Series(array)


def _nullable(array):
    return _frame(array).convert_dtypes()


FORMS = {
    "reversed": lambda array: array[::-1].copy()[::-1],
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": _read_only,
    "strided": lambda array: np.repeat(array, 2, axis=0)[::2],
    "pandas": _frame,
    "pandas, nullable": _nullable,
}
DOORS = {
    "Predictions": lambda f, y, p: ts.Predictions(f, y, logit_prior=p).logits,
    "from_labels": lambda f, y, p: ts.priors.from_labels(y, 3),
    "from_counts": lambda f, y, p: ts.priors.from_counts(y),
    "as_prior": lambda f, y, p: ts.priors.as_prior(p),
    "accuracy": lambda f, y, p: metrics.accuracy(f, y, sample_weights=y),
    "nll": lambda f, y, p: metrics.negative_log_likelihood(f, y),
    "calibrator": lambda f, y, p: TemperatureScaling().fit(f, y).transform(f),
    "estimator": lambda f, y, p: EMEstimator(logit_prior=p).fit(f, y).estimate(f),
    "shift_test": lambda f, y, p: shift_test(f, f, p).p_value,
    "adapt": lambda f, y, p: ts.adapt(ts.Predictions(f, y), f).target_prior,
    "lade": lambda f, y, p: LADELoss(p, alpha=0.1, lam=0.01, class_weights=p)(
        torch.eye(3), torch.arange(3)
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("door", DOORS)
def test_door__takes_arrays_as_people_have_them(door, form):
    enter, change = DOORS[door], FORMS[form]
    found = enter(change(SCORES), change(LABELS), change(PRIOR))
    expected = enter(*(torch.from_numpy(a) for a in (SCORES, LABELS, PRIOR)))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("form", ["reversed", "big-endian", "read-only", "strided"])
def test_post_compensate__takes_arrays_as_people_have_them(form):
    prior = FORMS[form](PRIOR)
    given = {"logit_prior": prior, "target_prior": prior[::-1]}
    found = ts.post_compensate(FORMS[form](SCORES), **given)
    np.testing.assert_array_equal(found, ts.post_compensate(SCORES, **given))


@pytest.mark.parametrize("form", [*FORMS, "mapped into memory"])
def test_feature_bank__takes_arrays_as_people_have_them(form, tmp_path):
    x, path = SCORES.astype(np.float32), tmp_path / "x.npy"
    np.save(path, x)
    given = np.load(path, mmap_mode="r") if form not in FORMS else FORMS[form](x)
    labels = FORMS.get(form, np.asarray)(LABELS)
    splits = {"train": (given, labels), "test": (x, LABELS)}
    bank = ts.FeatureCache.from_arrays(tmp_path, **splits)
    train = bank.split("train")
    np.testing.assert_array_equal(train.features[0], x)
    np.testing.assert_array_equal(train.labels, LABELS)


def test_feature_bank__takes_tensors_that_have_a_gradient(tmp_path):
    x = torch.from_numpy(SCORES).requires_grad_()
    bank = ts.FeatureCache.from_arrays(tmp_path, train=(x, LABELS), test=(x, LABELS))
    assert torch.equal(bank.split("test").features[0], x.detach().float())


def test_as_tensor__of_a_single_reversed_entry():
    assert as_tensor(np.array([3.0])[::-1], "counts").tolist() == [3]


def test_predictions__takes_labels_by_name():
    names = ("kea", "tui", "weka")
    for labels in (
        ["tui", "kea"],
        np.array(["tui", "kea"]),
        _frame(np.array(["tui", "kea"])),
    ):
        found = ts.Predictions(LOGITS, labels, class_names=names)
        assert found.labels.tolist() == [1, 0]


@pytest.mark.parametrize("labels", [["tui", "kea"], np.array(["tui", "kea"])])
@pytest.mark.parametrize("door", ["Predictions", "from_labels", "nll", "calibrator"])
def test_door__refuses_text_as_labels(door, labels):
    with pytest.raises(TypeError) as error:
        DOORS[door](SCORES[:2], labels, PRIOR)
    assert str(error.value) == (
        "`labels` must be a tensor, an array or a list of numbers, but holds text such "
        "as 'tui'. Give each class by its position, counted from 0."
    )


AS_PROBS = (
    "`logits` must be logits, but every row lies in [0, 1] and sums to 1, as "
    "probabilities do. Take their logarithm, or give them as `probs` "
    "(Predictions.from_probs)."
)
AS_DATA = ("Predictions", "nll", "calibrator", "estimator", "shift_test")


@pytest.mark.parametrize("door", AS_DATA)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_door__refuses_probabilities_as_logits(door, dtype):
    probs = torch.from_numpy(SCORES).softmax(dim=1).numpy().astype(dtype)
    with pytest.raises(ValueError, match="logits") as error:
        DOORS[door](probs, LABELS, PRIOR)
    assert str(error.value) == AS_PROBS


PROBS = torch.from_numpy(SCORES).softmax(dim=1)
PRIORS = {"logit_prior": PRIOR, "target_prior": PRIOR}


UNLABELLED = {
    "adapt": lambda f: ts.adapt(ts.Predictions(SCORES, LABELS), f),
    "estimate": lambda f: EMEstimator().fit(SCORES, LABELS).estimate(f),
    "post_compensate": lambda f: ts.post_compensate(f, **PRIORS),
    "of an array": lambda f: ts.post_compensate(f.numpy(), **PRIORS),
    "a model": lambda f: ts.PostCompensated(torch.nn.Identity(), **PRIORS).adapt([f]),
}


@pytest.mark.parametrize("door", UNLABELLED)
def test_door__refuses_probabilities_without_labels(door):
    with pytest.raises(ValueError, match="logits") as error:
        UNLABELLED[door](PROBS)
    assert str(error.value) == AS_PROBS


def _compensate(logits):
    return ts.post_compensate(logits, **PRIORS)


def test_post_compensate__judges_no_values_in_training_or_in_a_graph(monkeypatch):
    """What comes back is what was given, since both priors are the same."""
    in_training = _compensate(PROBS.clone().requires_grad_())
    torch.testing.assert_close(in_training.detach(), PROBS)
    torch.testing.assert_close(torch.vmap(_compensate)(PROBS[None]), PROBS[None])
    for module, asked in ((torch.compiler, "is_compiling"), (torch._C, "_is_tracing")):
        with monkeypatch.context() as patch:
            patch.setattr(module, asked, lambda: True)
            torch.testing.assert_close(_compensate(PROBS), PROBS)


@pytest.mark.parametrize(
    "logits", [torch.eye(3)[[0, 1, 1]], torch.tensor([[0.5, 0.5]]), torch.ones(3, 1)]
)
def test_check_logits__does_not_judge_what_may_be_logits(logits):
    check_logits(logits)
