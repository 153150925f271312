"""A loss module whose vectors over the classes keep their precision."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class VectorModule(nn.Module):
    """Base of the losses that hold a prior, weights or margins as buffers.

    Buffers move with the module but keep their float64 (float32 where a device has no
    float64): a prior rounded to half precision, as ``.half()`` or ``.to(bfloat16)``
    would leave it, is wrong in the third digit and may be 0 for the rarest classes.

    Example:
        >>> loss = VectorModule()
        >>> loss.register_buffer("weights", torch.tensor([1e-8, 1.0]).double())
        >>> loss.half().weights
        tensor([1.0000e-08, 1.0000e+00], dtype=torch.float64)
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every .to(), .cuda() and .half() of a module comes through here.
        for name, buffer in self._buffers.items():
            if buffer is not None:
                device = fn(torch.empty(0, device=buffer.device)).device
                dtype = torch.float32 if device.type == "mps" else torch.float64
                self._buffers[name] = buffer.to(device, dtype)
        if recurse:
            for child in self.children():
                child._apply(fn)  # type: ignore[no-untyped-call] # torch has no types
        return self
