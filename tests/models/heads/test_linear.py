import torch
from torch import nn

from tailshift.models import LinearHead


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
