"""The causal head against a loop, and the moving average that it subtracts."""

import math

import pytest
import torch
from torch import Tensor

from tailshift.models import CausalHead


def _pieces(v: list[float], k: int, num_heads: int) -> list[float]:
    size = len(v) // num_heads
    return v[k * size : (k + 1) * size]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))


def _reference_causal(x: Tensor, head: CausalHead, alpha: float) -> Tensor:
    """τ/K Σ_k w_k/(‖w_k‖ + γ) · (x_k/‖x_k‖ − α cos(x_k, x̄_k) x̄_k/‖x̄_k‖)."""
    logits = torch.zeros(len(x), head.num_classes, dtype=torch.float64)
    mean = head.mean_feature.tolist()
    for i, row in enumerate(x.tolist()):
        for c, vector in enumerate(head.weight.tolist()):
            for k in range(head.num_heads):
                x_k, w_k, m_k = (
                    _pieces(v, k, head.num_heads) for v in (row, vector, mean)
                )
                length = math.sqrt(_dot(x_k, x_k))
                term = _dot(w_k, x_k) / length
                if alpha:
                    drift = math.sqrt(_dot(m_k, m_k))
                    cosine = _dot(x_k, m_k) / (length * drift)
                    term -= alpha * cosine * _dot(w_k, m_k) / drift
                logits[i, c] += term / (math.sqrt(_dot(w_k, w_k)) + head.gamma)
    return head.scale / head.num_heads * logits


@pytest.mark.parametrize("num_heads", [1, 2, 3])
@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_causal_head__agrees_with_the_loop(num_heads: int, alpha: float) -> None:
    head = CausalHead(6, 4, num_heads=num_heads, alpha=alpha).double().eval()
    head.mean_feature.copy_(torch.randn(6))
    x = torch.randn(5, 6).double()
    expected = _reference_causal(x, head, alpha)
    torch.testing.assert_close(head(x), expected, rtol=0, atol=1e-10)


def test_causal_head__in_training_nothing_is_removed() -> None:
    head = CausalHead(6, 4, alpha=3.0).double()
    head.mean_feature.copy_(torch.randn(6))
    x = torch.randn(5, 6).double()
    expected = _reference_causal(x, head, alpha=0)
    torch.testing.assert_close(head(x), expected, rtol=0, atol=1e-10)


def test_causal_head__alpha_0_at_test_is_the_plain_head() -> None:
    """α is free in a trained head: with 0 it answers as it was trained to."""
    head = CausalHead(6, 4, alpha=1.5)
    x = torch.randn(5, 6)
    trained = head(x)
    head.eval()
    assert not torch.allclose(head(x), trained)
    head.alpha = 0.0
    assert torch.equal(head(x), trained)


def test_causal_head__alpha_1_removes_the_drift_whole() -> None:
    """A feature along the mean has no direction left, so no class is preferred."""
    head = CausalHead(6, 4, alpha=1.0).eval()
    head.mean_feature.copy_(torch.randn(6))
    logits = head(5 * head.mean_feature[None])
    torch.testing.assert_close(logits, torch.zeros(1, 4), rtol=0, atol=1e-5)


def test_causal_head__average_has_the_direction_of_the_decayed_sum() -> None:
    """Batch means a, b, c: 0.81 a + 0.9 b + c."""
    head = CausalHead(4, 3)
    batches = [torch.randn(7, 4) for _ in range(3)]
    for batch in batches:
        head(batch)
    a, b, c = (batch.mean(0) for batch in batches)
    torch.testing.assert_close(head.mean_feature, 0.81 * a + 0.9 * b + c)
    head.eval()(torch.randn(7, 4))  # evaluation moves nothing
    torch.testing.assert_close(head.mean_feature, 0.81 * a + 0.9 * b + c)


def test_causal_head__average_is_part_of_the_state() -> None:
    head, other = CausalHead(4, 3), CausalHead(4, 3)
    head(torch.randn(7, 4))
    other.load_state_dict(head.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(other.eval()(x), head.eval()(x))


def test_causal_head__pieces_must_be_equal() -> None:
    with pytest.raises(ValueError, match="num_heads") as error:
        CausalHead(5, 3, num_heads=2)
    assert str(error.value) == "`num_heads` must divide the 5 features, but is 2."
