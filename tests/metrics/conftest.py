"""Random predictions of several sizes, and the degenerate ones."""

import pytest
import torch


def _case(num_samples, num_classes, *, scale=2.0, dtype=torch.float64):
    logits = scale * torch.randn(num_samples, num_classes, dtype=dtype)
    labels = torch.randint(num_classes, (num_samples,))
    logits[torch.arange(num_samples), labels] += scale
    return logits, labels


CASES = {
    "random": lambda: _case(500, 7),
    "more classes than bins": lambda: _case(300, 60),
    "two classes": lambda: _case(200, 2),
    "float32": lambda: _case(500, 7, dtype=torch.float32),
    "one sample": lambda: _case(1, 5),
    "one class": lambda: (torch.randn(20, 1).double(), torch.zeros(20).long()),
    "all wrong": lambda: (
        3 * torch.eye(4).double().repeat(5, 1),
        torch.tensor([1, 2, 3, 0]).repeat(5),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    """Return logits and labels."""
    torch.manual_seed(0)
    return CASES[request.param]()
