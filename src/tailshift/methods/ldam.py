"""LDAM and LDAM+DRW: rare classes must be told apart by a larger margin."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import LDAMLoss, class_balanced_weights
from tailshift.methods.method import METHODS, Method
from tailshift.methods.softmax import weighted_prior, with_mean_1
from tailshift.models import CosineHead, Head


class _LDAMOfLogits(LDAMLoss):
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
        return _LDAMOfLogits(class_counts, max_margin=self.max_margin, scale=self.scale)

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the cosine head."""
        return CosineHead(feature_dim, num_classes, scale=self.scale)

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior."""
        return priors.from_counts(class_counts)


class _DeferredLDAM(_LDAMOfLogits):
    """LDAM whose classes are weighted from an epoch on.

    Args:
        class_counts: How often each class is sampled, shape (C,).
        max_margin: The margin of the rarest class.
        scale: The largest logit.
        late_weights: The weights after the switch, shape (C,).
        begin: The share of the epochs after which they come.
    """

    def __init__(
        self,
        class_counts: Tensor,
        *,
        max_margin: float,
        scale: float,
        late_weights: Tensor,
        begin: float,
    ) -> None:
        super().__init__(class_counts, max_margin=max_margin, scale=scale)
        self.late_weights = late_weights
        self.begin = begin

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Switch the weights on when it is time."""
        if epoch >= self.begin * num_epochs:
            self.set_class_weights(self.late_weights)


@METHODS.register("ldam_drw")
@dataclass(frozen=True)
class LDAMDRW(LDAM):
    """LDAM with deferred re-weighting [cao2019]."""

    title = "LDAM+DRW"
    sentence = (
        "LDAM, with class-balanced weights in the last fifth of the epochs; its logits "
        "are taken to carry the source prior times these weights."
    )
    prior = "∝ p_s · weights, by convention"

    begin: Annotated[float, Field(ge=0, le=1)] = 0.8
    """The share of the epochs after which the weights come."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.9999
    """β of the class-balanced weights."""

    def class_weights(self, class_counts: Tensor) -> Tensor:
        """Return the weights of the last epochs, of mean 1 over the samples."""
        weights = class_balanced_weights(class_counts, beta=self.beta)
        return with_mean_1(weights, class_counts)

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the loss for the counts."""
        return _DeferredLDAM(
            class_counts,
            max_margin=self.max_margin,
            scale=self.scale,
            late_weights=self.class_weights(class_counts),
            begin=self.begin,
        )

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior times the weights."""
        return weighted_prior(class_counts, self.class_weights(class_counts))
