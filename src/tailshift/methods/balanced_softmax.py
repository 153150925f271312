"""Balanced Softmax: the source prior is added during training, not at test time."""

from dataclasses import dataclass

from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import BalancedSoftmaxLoss
from tailshift.methods.method import METHODS, Method


@METHODS.register("balanced_softmax")
@dataclass(frozen=True)
class BalancedSoftmax(Method):
    """Cross-entropy of logits shifted by the log source prior, Eq. (19)."""

    title = "Balanced Softmax"
    sentence = "Cross-entropy of f + log p_s; its logits carry the uniform prior."
    citation = "ren2020"
    prior = "uniform"

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the loss for the counts' prior."""
        return BalancedSoftmaxLoss(priors.from_counts(class_counts))

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))
