"""The head of BBN: what it mixes, and when."""

import pytest
import torch

from tailshift.models import BilateralHead


def test_bilateral_head__agrees_with_the_loop() -> None:
    head = BilateralHead(6, 4).double()
    head.share = 0.3
    x = torch.randn(5, 6).double()
    w, b = head.linear.weight, head.linear.bias
    for i, c in torch.cartesian_prod(torch.arange(5), torch.arange(4)).tolist():
        mixed = [2 * (0.3 if j < 3 else 0.7) * x[i, j] for j in range(6)]
        expected = sum(w[c, j] * mixed[j] for j in range(6)) + b[c]
        torch.testing.assert_close(head(x)[i, c], expected, rtol=0, atol=1e-10)


def test_bilateral_head__share_1_is_the_conventional_branch_only() -> None:
    head, x = BilateralHead(6, 4), torch.randn(5, 6)
    assert head.share == 1.0
    w, b = head.linear.weight[:, :3], head.linear.bias
    torch.testing.assert_close(head(x), 2 * x[:, :3] @ w.T + b)
    other = torch.cat([x[:, :3], torch.randn(5, 3)], dim=1)
    assert torch.equal(head(other), head(x))


def test_bilateral_head__both_branches_count_alike_at_test() -> None:
    head, x = BilateralHead(6, 4).eval(), torch.randn(5, 6)
    torch.testing.assert_close(head(x), head.linear(x))


@pytest.mark.parametrize(("epoch", "share"), [(0, 1.0), (5, 0.75), (9, 0.19)])
def test_bilateral_head__share_falls_along_a_parabola(epoch: int, share: float) -> None:
    """1 − (T/10)² with T epochs done: 1, 1 − 0.25, 1 − 0.81."""
    head = BilateralHead(6, 4)
    head.begin_epoch(epoch, 10)
    assert head.share == pytest.approx(share)
