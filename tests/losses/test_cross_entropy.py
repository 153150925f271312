"""Plain cross-entropy."""

import math

import torch

from tailshift.losses import cross_entropy_loss


def test_cross_entropy_loss__worked_example():
    """Logits log 3 and log 1: p = (3/4, 1/4), so the losses are log 4/3 and log 4."""
    logits = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]])
    losses = cross_entropy_loss(logits, torch.tensor([0, 1]), reduction="none")
    torch.testing.assert_close(losses, torch.tensor([4 / 3, 4.0]).log())


def test_cross_entropy_loss__ignores_a_constant():
    logits = torch.randn(5, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0])
    torch.testing.assert_close(
        cross_entropy_loss(logits + 7, labels), cross_entropy_loss(logits, labels)
    )
