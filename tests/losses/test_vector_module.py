"""Buffers that keep their precision, and what is inside of a module."""

import torch
from torch import nn

from tailshift.losses.base import VectorModule


class _Outer(VectorModule):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("vector", torch.tensor([1e-9, 1.0], dtype=torch.float64))
        self.register_buffer("nothing", None)
        self.inner = nn.Linear(2, 2)


def test_vector_module__casts_what_is_inside_but_not_its_vectors():
    module = _Outer().half()
    assert module.vector.tolist() == [1e-9, 1.0]
    assert module.nothing is None
    assert module.inner.weight.dtype == torch.float16


def test_vector_module__moves_with_all_that_is_inside():
    module = _Outer().to("meta")
    assert module.vector.device.type == "meta"
    assert module.vector.dtype == torch.float64
    assert module.inner.weight.device.type == "meta"
