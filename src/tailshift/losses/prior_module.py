"""A loss module that holds its source prior, whatever it is cast to."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from tailshift.priors import VectorLike, as_prior


class PriorModule(nn.Module):
    """Base of the losses that carry a prior; it is checked here, once, and a buffer.

    Buffers move with the module but keep their float64 (float32 where a device has no
    float64): a prior rounded to half precision, as ``.half()`` or ``.to(bfloat16)``
    would leave it, is wrong in the third digit and may be 0 for the rarest classes.

    Args:
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
    """

    source_prior: Tensor

    def __init__(self, source_prior: VectorLike) -> None:
        super().__init__()
        self.register_buffer("source_prior", as_prior(source_prior, positive=True))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every .to(), .cuda() and .half() of a module comes through here.
        device = fn(torch.empty(0, device=self.source_prior.device)).device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(device, dtype)
        return self

    def log_prior(self, logits: Tensor) -> Tensor:
        r"""Return :math:`\log p_s` in the dtype of the widened ``logits``."""
        return self.source_prior.to(logits.dtype).log()

    def extra_repr(self) -> str:
        """Say for how many classes the prior is."""
        return f"num_classes={len(self.source_prior)}"
