import pytest
import torch
from torch import nn

from tailshift.models import HEADS, LinearHead, build_head


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


@pytest.mark.parametrize("name", HEADS.names())
def test_heads__shape_gradient_and_sentence(name: str) -> None:
    head = build_head(name, feature_dim=6, num_classes=3)
    assert (head.feature_dim, head.num_classes) == (6, 3)
    logits = head(torch.randn(4, 6))
    assert logits.shape == (4, 3)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in head.parameters())
    assert HEADS.get(name).sentence.endswith(".")


def test_build_head__unknown_name() -> None:
    with pytest.raises(ValueError, match="unknown head") as error:
        build_head("liner", feature_dim=6, num_classes=3)
    known = ", ".join(HEADS.names())
    assert (
        str(error.value)
        == f"unknown head 'liner'; did you mean 'linear'? Known: {known}"
    )


def test_build_head__one_class() -> None:
    with pytest.raises(ValueError, match="num_classes") as error:
        build_head("linear", feature_dim=6, num_classes=1)
    assert str(error.value) == "`num_classes` must be >= 2, but is 1."
