"""Causal Norm: normalised heads, less what points along the features' drift."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import CrossEntropyLoss
from tailshift.methods.method import METHODS, Method
from tailshift.models import CausalHead, Head


@METHODS.register("causal_norm")
@dataclass(frozen=True)
class CausalNorm(Method):
    """De-confounded training, and the total direct effect at test time [tang2020]."""

    title = "Causal Norm"
    sentence = (
        "Cross-entropy of normalised heads; at test the part along the features' mean "
        "is removed, after which they are taken to carry the uniform prior."
    )
    citation = "tang2020"
    prior = "uniform by convention; source with alpha = 0"

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    """α, how much of the mean feature's effect is removed at test time."""
    num_heads: Annotated[int, Field(ge=1)] = 2
    """K, the pieces that features and weights are cut into."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    """τ, the largest logit."""
    gamma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1 / 32
    """γ, added to the length of each weight vector."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the cross-entropy; the counts do not matter."""
        return CrossEntropyLoss()

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the causal head."""
        return CausalHead(
            feature_dim,
            num_classes,
            num_heads=self.num_heads,
            scale=self.scale,
            gamma=self.gamma,
            alpha=self.alpha,
        )

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior, or the source prior if nothing is removed."""
        if self.alpha == 0:
            return priors.from_counts(class_counts)
        return priors.uniform(len(class_counts))
