"""Logit adjustment: the source prior, to a power, is added in training or taken off."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import CrossEntropyLoss, LogitAdjustedLoss
from tailshift.methods.method import METHODS, Method


@METHODS.register("logit_adjustment")
@dataclass(frozen=True)
class LogitAdjustment(Method):
    """Logit adjustment [menon2021]."""

    title = "Logit Adjustment"
    sentence = (
        "Cross-entropy of f + τ log p_s, whose logits carry p_s^(1−τ); post hoc it is "
        "Softmax, compensated."
    )
    citation = "menon2021"
    prior = "∝ p_s^(1−τ); post hoc, source"

    tau: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """τ, how much of the prior the loss takes over."""
    when: Literal["loss", "post_hoc"] = "loss"
    """In training, or only afterwards: then training is Softmax's, and compensation
    takes the prior off. The test-time τ is the target: p_t ∝ p_s^(1−τ)."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the loss for the counts' prior."""
        if self.when == "post_hoc":
            return CrossEntropyLoss()
        return LogitAdjustedLoss(priors.from_counts(class_counts), tau=self.tau)

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        r"""Return :math:`p_s^{1 - \tau}`, normalised."""
        log_p_s = priors.from_counts(class_counts).log()
        share = 1.0 if self.when == "post_hoc" else 1 - self.tau
        return (share * log_p_s).softmax(0)
