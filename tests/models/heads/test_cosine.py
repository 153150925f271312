"""The cosine head against a loop; it sees directions only."""

import math

import pytest
import torch
from torch import Tensor

from tailshift.losses import LDAMLoss
from tailshift.models import CosineHead


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
