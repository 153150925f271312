"""BBN: a conventional and a re-balancing branch, mixed by a schedule."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import BilateralLoss
from tailshift.methods.method import METHODS, Method, Stage
from tailshift.models import Backbone, BilateralHead, BranchedBackbone, Head


@METHODS.register("bbn")
@dataclass(frozen=True)
class BBN(Method):
    """The bilateral-branch network [zhou2020]."""

    title = "BBN"
    sentence = (
        "Two branches, one trained on images as they come, one on rare classes most, "
        "mixed from the one to the other; taken to carry the uniform prior."
    )
    citation = "zhou2020"
    prior = "uniform, by convention"
    cost = 2.0

    t_max: Annotated[int, Field(ge=1)] | None = None
    """T_max of the share a = 1 − (T/T_max)²; None takes the epochs of the training."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the mixed cross-entropy; the counts do not matter."""
        return BilateralLoss(t_max=self.t_max)

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the classifier over both branches."""
        return BilateralHead(feature_dim, num_classes, t_max=self.t_max)

    def branch(self, backbone: Backbone) -> Backbone:
        """Return the backbone with its last block twice."""
        return BranchedBackbone(backbone, 2, at="last_block", trained_on="own_part")

    def stages(self) -> tuple[Stage, ...]:
        """Return the one stage, with two samplers."""
        samplers = ("instance", "reverse")
        return (Stage(self.build_loss, self.build_head, samplers=samplers),)

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))
