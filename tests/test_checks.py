"""Checks of scores, labels and counts: whole sentences, and no copies."""

import numpy as np
import pytest
import torch

from tailshift.predictions import as_tensor, check_counts, check_logits, check_probs

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
