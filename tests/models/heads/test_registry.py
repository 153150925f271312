"""What holds for every registered head."""

import pytest
import torch
from torch import Tensor

from tailshift.models import HEADS, Head, LinearHead

FEATURES, CLASSES = 6, 3
LOSS_ONLY = {"centroids"}
"""Parameters that the logits give no gradient, on purpose: OLTR's memory."""


class SomeFeatures:
    """Features such as a backbone gives: random ones of every class."""

    def train(self) -> tuple[Tensor, Tensor]:
        return torch.randn(12, FEATURES), torch.arange(12) % CLASSES

    def val(self) -> tuple[Tensor, Tensor]:
        return self.train()


@pytest.fixture(params=HEADS.names())
def head(request: pytest.FixtureRequest) -> Head:
    """Return a head that has begun where the linear head has ended."""
    head = HEADS.get(request.param)(FEATURES, CLASSES)
    head.begin(LinearHead(FEATURES, CLASSES), SomeFeatures())
    return head


def _logits(head: Head, x: Tensor) -> Tensor:
    output = head(x)
    return output if isinstance(output, Tensor) else output.logits


def test_heads__shape_gradient_and_sentence(head: Head) -> None:
    assert (head.feature_dim, head.num_classes) == (FEATURES, CLASSES)
    x = torch.randn(4, FEATURES, requires_grad=True)
    logits = _logits(head, x)
    assert logits.shape == (4, CLASSES)
    logits.square().sum().backward()
    without = {name for name, p in head.named_parameters() if p.grad is None}
    assert without <= LOSS_ONLY
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0


def test_heads__answer_with_logits_in_evaluation(head: Head) -> None:
    logits = head.eval()(torch.randn(4, FEATURES))
    assert isinstance(logits, Tensor)
    assert logits.shape == (4, CLASSES)


@pytest.mark.parametrize("is_training", [True, False])
def test_heads__gradient_agrees_with_numerical_differentiation(
    head: Head, is_training: bool
) -> None:
    """By the features and by every parameter, in training and in evaluation."""
    head.double().train(is_training)
    learnt = {n: p for n, p in head.named_parameters() if n not in LOSS_ONLY}
    state = {name: buffer.clone() for name, buffer in head.named_buffers()}

    def logits(x: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(learnt, parameters, strict=True))
        buffers = {name: buffer.clone() for name, buffer in state.items()}
        output = torch.func.functional_call(head, {**buffers, **given}, (x,))
        return output if isinstance(output, Tensor) else output.logits

    x = torch.randn(4, FEATURES, dtype=torch.float64, requires_grad=True)
    parameters = [p.detach().clone().requires_grad_() for p in learnt.values()]
    assert torch.autograd.gradcheck(logits, (x, *parameters))


def test_heads__are_described() -> None:
    for name in HEADS:
        assert HEADS.sentence(name).endswith(".")
