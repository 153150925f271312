"""A loss module that holds its source prior, whatever it is cast to."""

from torch import Tensor

from tailshift.losses.vector_module import VectorModule
from tailshift.priors import VectorLike, as_prior


class PriorModule(VectorModule):
    """Base of the losses that carry a prior; it is checked here, once, and a buffer.

    Args:
        source_prior: :math:`p_s`, strictly positive, sums to 1, shape (C,).
    """

    source_prior: Tensor

    def __init__(self, source_prior: VectorLike) -> None:
        super().__init__()
        self.register_buffer("source_prior", as_prior(source_prior, positive=True))

    def log_prior(self, logits: Tensor) -> Tensor:
        r"""Return :math:`\log p_s` in the dtype of the widened ``logits``."""
        return self.source_prior.to(logits.dtype).log()

    def extra_repr(self) -> str:
        """Say for how many classes the prior is."""
        return f"num_classes={len(self.source_prior)}"
