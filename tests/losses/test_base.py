"""Shapes and dtypes of logits and labels; every sentence compared whole."""

import pytest
import torch

from tailshift.losses.checks import check_batch, check_num_classes


@pytest.mark.parametrize(
    ("dtype", "widened"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_check_batch__widens_half_precision(dtype, widened):
    labels = torch.tensor([0, 2], dtype=torch.uint8)
    f, y = check_batch(torch.zeros(2, 3, dtype=dtype), labels)
    assert f.dtype == widened
    assert y.dtype == torch.int64


@pytest.mark.parametrize(
    ("logits", "labels", "kind", "sentence"),
    [
        (
            [[1.0]],
            torch.zeros(1),
            TypeError,
            "`logits` must be a torch tensor, but is list.",
        ),
        (
            torch.zeros(1, 2),
            [0],
            TypeError,
            "`labels` must be a torch tensor, but is list.",
        ),
        (
            torch.zeros(1, 2, dtype=torch.int64),
            torch.tensor([0]),
            TypeError,
            "`logits` must be floating point, but is torch.int64.",
        ),
        (
            torch.zeros(3),
            torch.tensor([0]),
            ValueError,
            "`logits` must have shape (N, C), but has shape (3,).",
        ),
        (
            torch.zeros(0, 10),
            torch.zeros(0, dtype=torch.int64),
            ValueError,
            "`logits` must hold at least one sample and one class, "
            "but has shape (0, 10). Skip an empty batch.",
        ),
        (
            torch.zeros(2, 3),
            torch.zeros(2),
            TypeError,
            "`labels` must be class indices, but is torch.float32.",
        ),
        (
            torch.zeros(2, 3),
            torch.tensor([True, False]),
            TypeError,
            "`labels` must be class indices, but is torch.bool.",
        ),
        (
            torch.zeros(5, 3),
            torch.zeros(4, dtype=torch.int64),
            ValueError,
            "`labels` must have shape (5,), one for each row of `logits`, "
            "but has shape (4,).",
        ),
        (
            torch.zeros(2, 3),
            torch.zeros(2, 3, dtype=torch.int64),
            ValueError,
            "`labels` must have shape (2,), one for each row of `logits`, "
            "but has shape (2, 3).",
        ),
    ],
)
def test_check_batch__says_what_is_wrong(logits, labels, kind, sentence):
    with pytest.raises(kind) as error:
        check_batch(logits, labels)
    assert str(error.value) == sentence


def test_check_batch__calls_the_logits_as_the_loss_does():
    with pytest.raises(ValueError, match=r"^`") as error:
        check_batch(torch.zeros(3), torch.tensor([0]), name="cosines")
    assert str(error.value) == ("`cosines` must have shape (N, C), but has shape (3,).")


def test_check_num_classes__names_both_sizes():
    with pytest.raises(ValueError, match=r"^`") as error:
        check_num_classes("source_prior", torch.ones(10), torch.zeros(2, 100))
    assert str(error.value) == (
        "`source_prior` has 10 entries but `logits` has 100 classes."
    )
