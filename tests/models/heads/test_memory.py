import math

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from tailshift.models import LinearHead, MemoryHead, MemoryOutput
from tailshift.models.heads.memory import nearest_distance

D, C = 4, 3


def _head(dtype: torch.dtype = torch.float64) -> MemoryHead:
    head = MemoryHead(D, C).to(dtype)
    torch.nn.init.normal_(head.centroids)
    return head


def _reference_logits(head: MemoryHead, features: Tensor) -> list[list[float]]:
    """Sample by sample as [liu2019] writes it, with z itself and its length."""
    w_o, b_o = head.hallucinator.weight.tolist(), head.hallucinator.bias.tolist()
    w_e, b_e = head.selector.weight.tolist(), head.selector.bias.tolist()
    c, w = head.centroids.tolist(), head.weight.tolist()

    def dot(a: list[float], b: list[float]) -> float:
        return sum(p * q for p, q in zip(a, b, strict=True))

    logits = []
    for x in features.tolist():
        asked = [math.exp(dot(w_o[k], x) + b_o[k]) for k in range(C)]
        m = [sum(asked[k] * c[k][i] for k in range(C)) / sum(asked) for i in range(D)]
        e = [math.tanh(dot(w_e[i], x) + b_e[i]) for i in range(D)]
        reachability = 10 / min(math.dist(x, c[k]) for k in range(C))
        z = [reachability * (x[i] + e[i] * m[i]) for i in range(D)]
        length = math.hypot(*z)
        squashed = [length / (1 + length) * value / length for value in z]
        logits.append([16 * dot(w[k], squashed) / math.hypot(*w[k]) for k in range(C)])
    return logits


def test_memory_head__worked_example() -> None:
    """x = (3, 4), memory at 0 and (3, 9): m = ½ (3, 9), e = 0 or almost 1.

    The nearest centroid is at distance 5, a tie, so z = 2 v. With e = 0: v = x, ‖z‖ =
    10, logits 16 · 10/11 · (0.6, 0.8). With e = (0, 1): v = (3, 8.5).
    """
    head = MemoryHead(2, 2).eval()
    with torch.no_grad():
        for layer in (head.hallucinator, head.selector):
            layer.weight.zero_()
            layer.bias.zero_()
        head.centroids.copy_(torch.tensor([[0.0, 0.0], [3.0, 9.0]]))
        head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
        x = torch.tensor([[3.0, 4.0]])
        expected = 16 * 10 / 11 * torch.tensor([[0.6, 0.8]])
        torch.testing.assert_close(head(x), expected)
        head.selector.bias.copy_(torch.tensor([0.0, 30.0]))
        length = math.hypot(3, 8.5)
        squash = 2 * length / (1 + 2 * length)
        expected = 16 * squash / length * torch.tensor([[3.0, 8.5]])
        torch.testing.assert_close(head(x), expected)


def test_memory_head__agrees_with_the_loop() -> None:
    head, x = _head().eval(), torch.randn(7, D, dtype=torch.float64)
    expected = torch.tensor(_reference_logits(head, x), dtype=torch.float64)
    torch.testing.assert_close(head(x), expected, rtol=0, atol=1e-10)


def test_memory_head__gradient_agrees_with_numerical_differentiation() -> None:
    head = _head().eval()
    names = [name for name, _ in head.named_parameters() if name != "centroids"]
    x = torch.randn(3, D, dtype=torch.float64, requires_grad=True)

    def logits(x: Tensor, *values: Tensor) -> Tensor:
        output: Tensor = functional_call(
            head, dict(zip(names, values, strict=True)), (x,)
        )
        return output

    values = [dict(head.named_parameters())[name] for name in names]
    assert len(names) == 5
    assert torch.autograd.gradcheck(logits, (x, *values))


def test_memory_head__in_training_the_loss_gets_features_and_centroids() -> None:
    head, x = _head(), torch.randn(5, D, dtype=torch.float64)
    output = head(x)
    assert isinstance(output, MemoryOutput)
    assert output.features is x
    assert output.centroids is head.centroids
    assert torch.equal(output.logits, head.eval()(x))


def test_memory_head__logits_do_not_move_the_centroids() -> None:
    head = _head()
    head(torch.randn(5, D, dtype=torch.float64)).logits.square().sum().backward()
    without = [name for name, p in head.named_parameters() if p.grad is None]
    assert without == ["centroids"]


def test_memory_head__begins_from_class_means_and_the_linear_head() -> None:
    class Features:
        def train(self) -> tuple[Tensor, Tensor]:
            x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]])
            return x, torch.tensor([1, 1, 0])

        def val(self) -> None:
            raise AssertionError("not asked for")

    head, linear = MemoryHead(2, 2), LinearHead(2, 2)
    head.begin(linear, Features())
    assert head.centroids.tolist() == [[5.0, 5.0], [2.0, 1.0]]
    assert head.centroids.requires_grad
    x = torch.randn(3, 2)
    assert torch.equal(head.hallucinator(x), linear(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_memory_head__a_feature_on_a_centroid(dtype: torch.dtype) -> None:
    """At distance 0 the squashed length is 1, and nothing divides by 0."""
    head = _head(dtype)
    x = head.centroids.detach().clone().requires_grad_()
    logits = head(x).logits
    assert logits.dtype == dtype
    assert (logits.abs() <= 16.1).all()
    logits.square().sum().backward()
    assert x.grad is not None
    for tensor in (logits, x.grad, head.weight.grad, head.selector.weight.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


def test_memory_head__a_zero_feature_on_a_zero_centroid() -> None:
    head = MemoryHead(D, C)
    x = torch.zeros(2, D, requires_grad=True)
    logits = head(x).logits
    assert torch.equal(logits, torch.zeros(2, C))
    logits.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_memory_head__mixed_precision_is_close_to_full() -> None:
    head, x = _head(torch.float32), torch.randn(6, D)
    expected = head(x).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(x.bfloat16()).logits
    torch.testing.assert_close(logits.float(), expected, rtol=0, atol=0.3)


def test_nearest_distance__is_exact_where_a_matrix_product_is_not() -> None:
    """Far from 0, ‖x‖² + ‖c‖² − 2 x·c of nearly equal x and c has no digits left."""
    c = 1000 + torch.randn(40, 8)
    x = c.flip(0).clone()
    x[:, 0] += 0.25
    assert nearest_distance(x, c).flatten().tolist() == [0.25] * 40
    assert nearest_distance(c, c).count_nonzero() == 0


def test_nearest_distance__gradient() -> None:
    x = torch.randn(5, D, dtype=torch.float64, requires_grad=True)
    c = torch.randn(C, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(nearest_distance, (x, c))
