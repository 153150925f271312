"""Predictions in memory: what is kept, and what is refused."""

import numpy as np
import pytest
import torch

from tailshift.predictions import Predictions

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, -torch.inf, 4.0]])
LABELS = torch.tensor([0, 2])
COUNTS = torch.tensor([6, 3, 1])
PRIOR = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
NAMES = ("kea", "tūī", 'a "quoted" one')


def _predictions(**changes):
    fields = {
        "logits": LOGITS,
        "labels": LABELS,
        "source_counts": COUNTS,
        "logit_prior": PRIOR,
        "class_names": NAMES,
    }
    return Predictions(**(fields | changes))


def _assert_same(left: Predictions, right: Predictions):
    for key in ("logits", "labels", "source_counts", "logit_prior"):
        a, b = getattr(left, key), getattr(right, key)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
    assert left.class_names == right.class_names


def test_predictions__keeps_what_it_is_given():
    predictions = _predictions()
    assert torch.equal(predictions.logits, LOGITS)
    assert predictions.logits.data_ptr() == LOGITS.data_ptr()
    assert predictions.num_classes == 3
    assert predictions.class_names == NAMES
    assert predictions.logit_prior.dtype == torch.float64
    assert repr(predictions) == "Predictions(2 samples, 3 classes, torch.float32)"


def test_predictions__only_logits_and_labels():
    predictions = Predictions(LOGITS, LABELS)
    assert predictions.source_counts is None
    assert predictions.logit_prior is None
    assert predictions.class_names == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float32),
    ],
)
def test_predictions__logits_dtypes(given, kept):
    assert _predictions(logits=LOGITS.to(given)).logits.dtype == kept


def test_predictions__drops_the_gradient():
    logits = LOGITS.clone().requires_grad_()
    assert not _predictions(logits=logits).logits.requires_grad


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64])
def test_predictions__arrays_that_torch_cannot_share(dtype):
    logits = LOGITS.numpy().astype(">f4")[:, ::-1]
    logits.flags.writeable = False
    labels = LABELS.numpy().astype(dtype)
    labels.flags.writeable = False
    prior = PRIOR.numpy().copy()
    prior.flags.writeable = False
    predictions = Predictions(logits, labels, [6, 3, 1], prior, list(NAMES))
    assert torch.equal(predictions.logits, LOGITS.flip(1))
    assert torch.equal(predictions.labels, LABELS)
    assert torch.equal(predictions.source_counts, COUNTS)
    assert torch.equal(predictions.logit_prior, PRIOR)


def test_from_probs__takes_logs_and_zero_becomes_minus_infinity():
    probs = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    predictions = Predictions.from_probs(probs, LABELS.numpy(), class_names=NAMES)
    expected = [[np.log(0.5), np.log(0.5), -np.inf], [-np.inf, -np.inf, 0.0]]
    np.testing.assert_allclose(predictions.logits.numpy(), expected, rtol=1e-6)
    assert predictions.logits.dtype == torch.float32


def test_half__copies_in_half_precision():
    predictions = _predictions()
    half = predictions.half()
    assert half.logits.dtype == torch.float16
    assert predictions.logits.dtype == torch.float32
    assert torch.equal(half.logits.float(), LOGITS)
    again = half.half()
    assert again.logits.data_ptr() != half.logits.data_ptr()
    _assert_same(again, half)


def test_half__refuses_what_would_overflow():
    logits = torch.tensor([[1.0, -70000.0, -torch.inf]])
    predictions = Predictions(logits, torch.tensor([0]))
    with pytest.raises(ValueError, match="half precision") as error:
        predictions.half()
    assert str(error.value) == (
        "`logits` must lie within ±65504 to be kept in half precision, "
        "but -70000 is among them."
    )


@pytest.mark.parametrize(
    ("changes", "exception", "message"),
    [
        (
            {"logits": LOGITS[0]},
            ValueError,
            "`logits` must have shape (N, C) with at least one row and one class, "
            "but has shape (3,).",
        ),
        (
            {"logits": LOGITS[:0]},
            ValueError,
            "`logits` must have shape (N, C) with at least one row and one class, "
            "but has shape (0, 3).",
        ),
        (
            {"logits": LABELS[:, None]},
            TypeError,
            "`logits` must be floating point, but is torch.int64.",
        ),
        (
            {"logits": torch.tensor([[0.0, 1.0, 2.0], [0.0, torch.nan, 9.0]])},
            ValueError,
            "`logits` must be finite or −inf, but row 1 (from 0) holds nan.",
        ),
        (
            {"logits": torch.tensor([[0.0, 1.0, torch.inf], [0.0, 1.0, 2.0]])},
            ValueError,
            "`logits` must be finite or −inf, but row 0 (from 0) holds inf.",
        ),
        (
            {"logits": torch.full((2, 3), 1e300, dtype=torch.float64)},
            ValueError,
            "`logits` must be finite or −inf, but row 0 (from 0) holds inf.",
        ),
        (
            {"logits": torch.full((2, 3), -torch.inf)},
            ValueError,
            "`logits` must not be −inf for every class, but row 0 (from 0) is.",
        ),
        (
            {"logits": np.array([["a", "b", "c"]])},
            TypeError,
            "`logits` must be a tensor, an array or a list of numbers, "
            "but is an array of <U1.",
        ),
        (
            {"logits": "logits.npy"},
            TypeError,
            "`logits` must be a tensor, an array or a list of numbers, but is str.",
        ),
        (
            {"labels": torch.tensor([0, 3])},
            ValueError,
            "`labels` must lie in 0..2, but label 1 (counted from 0) is 3.",
        ),
        (
            {"labels": torch.tensor([0.0, 1.0])},
            TypeError,
            "`labels` must be integers, but are torch.float32.",
        ),
        (
            {"labels": torch.tensor([0, 1, 2])},
            ValueError,
            "`labels` has 3 entries but `logits` has 2 rows.",
        ),
        (
            {"source_counts": COUNTS[:2]},
            ValueError,
            "`source_counts` has 2 entries but there are 3 classes.",
        ),
        (
            {"source_counts": PRIOR},
            TypeError,
            "`source_counts` must be integers, but are torch.float64.",
        ),
        (
            {"source_counts": torch.tensor([5, -1, 0])},
            ValueError,
            "`source_counts` must not be negative, but is -1 for class 1.",
        ),
        (
            {"source_counts": torch.tensor([0, 0, 0])},
            ValueError,
            "`source_counts` must not be 0 for every class.",
        ),
        (
            {"logit_prior": PRIOR[:2]},
            ValueError,
            "`logit_prior` has 2 entries but `logits` has 3 classes.",
        ),
        (
            {"logit_prior": PRIOR / 2},
            ValueError,
            "`logit_prior` must sum to 1, but sums to 0.5000 (3 classes). "
            "Build it with priors.from_counts(counts).",
        ),
        (
            {"class_names": ("kea", "tui")},
            ValueError,
            "`class_names` has 2 names but `logits` has 3 classes.",
        ),
        (
            {"class_names": (0, 1, 2)},
            TypeError,
            "`class_names` must be strings, one per class.",
        ),
    ],
)
def test_predictions__refuses_with_a_sentence(changes, exception, message):
    with pytest.raises(exception) as error:
        _predictions(**changes)
    assert str(error.value) == message
