"""The loss of BBN against a loop, and at both ends of its schedule."""

import math

import pytest
import torch

from tailshift.losses import BilateralLoss, bilateral_loss, cross_entropy_loss
from tailshift.losses.bilateral import conventional_share


def _reference_bilateral(f, y_c, y_r, a):
    losses = []
    for row, c, r in zip(f.tolist(), y_c.tolist(), y_r.tolist(), strict=True):
        log_z = math.log(sum(math.exp(value) for value in row))
        losses.append(a * (log_z - row[c]) + (1 - a) * (log_z - row[r]))
    return losses


def _batch():
    logits = torch.randn(6, 4, dtype=torch.float64)
    return logits, torch.tensor([0, 0, 1, 0, 2, 0]), torch.tensor([3, 2, 3, 1, 3, 0])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_bilateral_loss__agrees_with_the_loop(share):
    f, y_c, y_r = _batch()
    expected = torch.tensor(_reference_bilateral(f, y_c, y_r, share), dtype=f.dtype)
    for reduction, wanted in (
        ("none", expected),
        ("mean", expected.mean()),
        ("sum", expected.sum()),
    ):
        loss = bilateral_loss(f, y_c, y_r, share=share, reduction=reduction)
        torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-10)


def test_bilateral_loss__ends_are_cross_entropies():
    f, y_c, y_r = _batch()
    conventional, rebalanced = cross_entropy_loss(f, y_c), cross_entropy_loss(f, y_r)
    assert torch.equal(bilateral_loss(f, y_c, y_r, share=1.0), conventional)
    assert torch.equal(bilateral_loss(f, y_c, y_r, share=0.0), rebalanced)


def test_bilateral_loss__gradient_agrees_with_numerical_differentiation():
    f, y_c, y_r = _batch()
    f.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logits: bilateral_loss(logits, y_c, y_r, share=0.3), f
    )


def test_bilateral_loss_module__takes_stacked_labels_and_follows_the_epochs():
    f, y_c, y_r = _batch()
    loss, labels = BilateralLoss(), torch.cat([y_c, y_r])
    assert torch.equal(loss(f, labels), cross_entropy_loss(f, y_c))
    loss.begin_epoch(5, 10)
    expected = bilateral_loss(f, y_c, y_r, share=0.75)
    assert torch.equal(loss(f, labels), expected)


def test_conventional_share__falls_from_1():
    shares = [conventional_share(epoch, 4) for epoch in range(4)]
    assert shares == [1.0, 1 - 1 / 16, 1 - 1 / 4, 1 - 9 / 16]


def test_bilateral_loss__labels_of_another_batch():
    f, y_c, y_r = _batch()
    for labels, others in ((y_c[:5], y_r), (y_c, y_r[:5])):
        with pytest.raises(ValueError, match="labels") as error:
            bilateral_loss(f, labels, others, share=0.5)
        assert str(error.value) == (
            "`labels` must have shape (6,), one for each row of `logits`, "
            "but has shape (5,)."
        )
