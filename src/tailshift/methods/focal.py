"""Focal: cross-entropy that attends to what is not learnt yet."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import FocalLoss, focal_log_posteriors
from tailshift.methods.method import METHODS, Method


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

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior."""
        return priors.from_counts(class_counts)

    def log_posteriors(self, logits: Tensor) -> Tensor:
        """Return the log posteriors that the logits stand for."""
        return focal_log_posteriors(logits, gamma=self.gamma)
