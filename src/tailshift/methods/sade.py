"""SADE: three experts, each trained to answer for another class distribution."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import SADELoss, sade_priors
from tailshift.methods.expert_shares import aggregate_prior
from tailshift.methods.method import Method
from tailshift.models import (
    Backbone,
    BranchedBackbone,
    ExpertHead,
    ExpertOutput,
    Head,
)

NUM_EXPERTS = 3


class SADEOfExperts(SADELoss):
    """SADE's loss of an expert head's output."""

    def forward(self, output: ExpertOutput, labels: Tensor) -> Tensor:  # type: ignore[override] # the head's form
        """Return the scalar loss."""
        return super().forward(output.experts, labels)

    def class_losses(self, output: ExpertOutput) -> Tensor:  # type: ignore[override] # the head's form
        """Return the loss for each possible label, shape (N, C)."""
        return super().class_losses(output.experts)


@dataclass(frozen=True)
class SADE(Method):
    """Self-supervised aggregation of diverse experts [zhang2022].

    Training leaves the experts counting alike. For a target without labels
    :func:`~tailshift.training.expert_views.adapt_experts` learns how much each should.
    """

    title = "SADE"
    sentence = (
        "Three experts, trained for the source, the uniform and an inverse prior; the "
        "mean carries their geometric mean exactly, which is not uniform."
    )
    citation = "zhang2022"
    prior = "∝ (p_s · inverse^tau)^(1/3)"
    cost = 1.1

    tau: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """τ, how far the third expert leans towards rare classes."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """s, the largest logit."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the experts' losses for the prior of the counts."""
        return SADEOfExperts(priors.from_counts(class_counts), tau=self.tau)

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the three experts' classifiers."""
        return ExpertHead(
            feature_dim, num_classes, num_experts=NUM_EXPERTS, scale=self.scale
        )

    def branch(self, backbone: Backbone) -> Backbone:
        """Return the backbone with its last part three times."""
        return BranchedBackbone(backbone, NUM_EXPERTS)

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior of the experts' mean: the geometric mean of theirs."""
        carried = sade_priors(priors.from_counts(class_counts), tau=self.tau)
        return aggregate_prior(carried, priors.uniform(NUM_EXPERTS))
