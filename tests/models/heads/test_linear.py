"""The affine head, that of LWS and the cosine head, against loops."""

import math

import pytest
import torch
from torch import Tensor, nn

from tailshift.losses import LDAMLoss
from tailshift.models import CosineHead, LinearHead, ScaledLinearHead


def test_linear_head__worked_example() -> None:
    """f = (1·2 + 2·3 + 0.5, 0·2 − 1·3 + 0) = (8.5, −3)."""
    head = LinearHead(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))
        head.bias.copy_(torch.tensor([0.5, 0.0]))
    assert head(torch.tensor([[2.0, 3.0]])).tolist() == [[8.5, -3.0]]


def test_linear_head__starts_as_a_linear_layer() -> None:
    torch.manual_seed(3)
    expected = nn.Linear(5, 4)
    torch.manual_seed(3)
    head = LinearHead(5, 4)
    assert torch.equal(head.weight, expected.weight)
    assert torch.equal(head.bias, expected.bias)


class NoFeatures:
    """A head that only takes weights over asks for none."""

    def train(self) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError

    def val(self) -> None:
        raise AssertionError


def _begun(before: LinearHead) -> ScaledLinearHead:
    head = ScaledLinearHead(5, 4)
    head.begin(before, NoFeatures())
    return head


def test_scaled_linear_head__scales_of_1_leave_the_classifier_unchanged() -> None:
    before, x = LinearHead(5, 4), torch.randn(6, 5)
    assert torch.equal(_begun(before)(x), before(x))


def test_scaled_linear_head__agrees_with_the_loop() -> None:
    head = _begun(LinearHead(5, 4)).double()
    torch.nn.init.uniform_(head.scales, 0.1, 3.0)
    x = torch.randn(6, 5).double()
    w, b, s = head.linear.weight, head.linear.bias, head.scales
    for i, c in torch.cartesian_prod(torch.arange(6), torch.arange(4)).tolist():
        expected = s[c] * (sum(w[c, j] * x[i, j] for j in range(5)) + b[c])
        torch.testing.assert_close(head(x)[i, c], expected, rtol=0, atol=1e-10)


def test_scaled_linear_head__keeps_what_it_took_over_apart() -> None:
    """Training the scales on must not reach back into the first stage's head."""
    before = LinearHead(5, 4)
    head = _begun(before)
    torch.nn.init.zeros_(head.linear.weight)
    assert before.weight.abs().sum() > 0


def _reference_cosines(x: Tensor, w: Tensor, scale: float) -> list[list[float]]:
    def length(v: list[float]) -> float:
        return math.sqrt(sum(a * a for a in v))

    return [
        [
            scale
            * sum(a * b for a, b in zip(row, c, strict=True))
            / length(row)
            / length(c)
            for c in w.tolist()
        ]
        for row in x.tolist()
    ]


def test_cosine_head__agrees_with_the_loop() -> None:
    head = CosineHead(5, 4, scale=7.0).double()
    x = torch.randn(3, 5).double()
    expected = torch.tensor(
        _reference_cosines(x, head.weight, 7.0), dtype=torch.float64
    )
    torch.testing.assert_close(head(x), expected, rtol=0, atol=1e-10)


def test_cosine_head__lengths_do_not_count() -> None:
    head = CosineHead(5, 4)
    x = torch.randn(3, 5)
    expected = head(x)
    with torch.no_grad():
        head.weight.mul_(torch.tensor([[0.1], [1.0], [5.0], [100.0]]))
    torch.testing.assert_close(head(3 * x), expected)
    assert expected.abs().max() <= 30


def test_cosine_head__ldam_without_margin_and_scale_is_cosine_cross_entropy() -> None:
    head = CosineHead(5, 4, scale=1.0)
    x, y = torch.randn(3, 5), torch.tensor([0, 3, 1])
    loss = LDAMLoss([50, 10, 5, 1], max_margin=0.0, scale=1.0)(head(x), y)
    expected = torch.nn.functional.cross_entropy(head(x), y)
    assert loss.item() == pytest.approx(expected.item())
