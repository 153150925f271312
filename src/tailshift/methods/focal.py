"""Focal and CB-Focal: cross-entropy that attends to what is not learnt yet."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from tailshift import losses, priors
from tailshift.losses import FocalLoss, focal_log_posteriors
from tailshift.methods.method import METHODS, Method
from tailshift.methods.softmax import weighted_prior
from tailshift.models import Head, LinearHead


@METHODS.register("focal")
@dataclass(frozen=True)
class Focal(Method):
    """Focal loss [lin2017]."""

    title = "Focal"
    sentence = (
        "Cross-entropy times (1 − p_y)^γ; what that does to the posterior is undone, "
        "and the logits then carry the source prior."
    )
    citation = "lin2017"
    prior = "source"

    gamma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """γ, how fast samples that are learnt lose their weight."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the focal loss; the counts do not matter."""
        return FocalLoss(gamma=self.gamma)

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior."""
        return priors.from_counts(class_counts)

    def log_posteriors(self, logits: Tensor) -> Tensor:
        """Return the log posteriors that the logits stand for."""
        return focal_log_posteriors(logits, gamma=self.gamma)


@METHODS.register("cb_focal")
@dataclass(frozen=True)
class ClassBalancedFocal(Method):
    """Class-balanced focal loss [cui2019]; with γ = 0, class-balanced cross-entropy."""

    title = "CB-Focal"
    sentence = (
        "Focal loss weighted by (1 − β)/(1 − β^n); what its power does to the "
        "posterior is undone, and the logits then carry p_s times the weights."
    )
    citation = "cui2019"
    prior = "∝ p_s · weights"

    beta: Annotated[float, Field(ge=0, le=1)] = 0.9999
    """β, from 0, no weights, to 1, weights by 1/n."""
    gamma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """γ, how fast samples that are learnt lose their weight."""
    form: Literal["softmax", "sigmoid"] = "softmax"
    """Classes as alternatives, or each on its own, as the authors' code has it."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the loss for the counts."""
        return losses.ClassBalancedFocalLoss(
            class_counts, beta=self.beta, gamma=self.gamma, form=self.form
        )

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return a linear head; for sigmoids all classes begin improbable."""
        head = LinearHead(feature_dim, num_classes)
        if self.form == "sigmoid":
            nn.init.constant_(head.bias, -math.log(num_classes - 1))
        return head

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior times the class weights."""
        weights = losses.class_balanced_weights(class_counts, beta=self.beta)
        return weighted_prior(class_counts, weights)

    def log_posteriors(self, logits: Tensor) -> Tensor:
        """Return the log posteriors that the logits stand for."""
        return losses.focal_log_posteriors(logits, gamma=self.gamma, form=self.form)
