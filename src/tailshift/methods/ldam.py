"""LDAM: rare classes must be told apart by a larger margin."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import LDAMLoss
from tailshift.methods.method import METHODS, Method
from tailshift.models import CosineHead, Head


class LDAMOfLogits(LDAMLoss):
    """LDAM of a cosine head's logits, which are the cosines times the scale."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss."""
        return super().forward(logits / self.scale, labels)

    def class_losses(self, logits: Tensor) -> Tensor:
        """Return the loss for each possible label, shape (N, C)."""
        return super().class_losses(logits / self.scale)


@METHODS.register("ldam")
@dataclass(frozen=True)
class LDAM(Method):
    """Label-distribution-aware margins [cao2019]."""

    title = "LDAM"
    sentence = (
        "Cross-entropy of scaled cosines with a margin ∝ n^(−1/4) on the true class; "
        "its logits are taken to carry the source prior."
    )
    citation = "cao2019"
    prior = "source, by convention"

    max_margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """The margin of the rarest class."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """s, the largest logit."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the loss for the counts."""
        return LDAMOfLogits(class_counts, max_margin=self.max_margin, scale=self.scale)

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the cosine head."""
        return CosineHead(feature_dim, num_classes, scale=self.scale)

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior."""
        return priors.from_counts(class_counts)
