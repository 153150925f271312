"""The head of LWS: with scales of 1 it is the classifier that it took over."""

import torch

from tailshift.models import LinearHead, ScaledLinearHead


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
