"""Softmax: plain cross-entropy; PC Softmax is this, compensated."""

from dataclasses import dataclass

from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import CrossEntropyLoss
from tailshift.methods.method import METHODS, Method


@METHODS.register("softmax")
@dataclass(frozen=True)
class Softmax(Method):
    """Cross-entropy, [hong2021] Eq. (1) and (2)."""

    title = "Softmax"
    sentence = "Cross-entropy; its logits carry the source prior (Theorem 1)."
    citation = "hong2021"
    prior = "source"

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the cross-entropy; the counts do not matter."""
        return CrossEntropyLoss()

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior."""
        return priors.from_counts(class_counts)
