"""MiSLAS: mixup for the representation, label-aware smoothing for the classifier."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from pydantic import Field

from tailshift.losses import LabelAwareSmoothing
from tailshift.methods.method import METHODS, Decoupled, OwnGroup, Stage
from tailshift.models import ScaledLinearHead


@METHODS.register("mislas")
@dataclass(frozen=True)
class MiSLAS(Decoupled):
    """Mixup shifted label-aware smoothing [zhong2021]."""

    title = "MiSLAS"
    sentence = (
        "Softmax's network under mixup, then its classifier and one factor a class "
        "trained on with label-aware smoothing on classes sampled equally often, "
        "while batch statistics move; its logits carry the sampler's prior."
    )
    citation = "zhong2021"
    cost = 1.4

    mixup: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    """α of the first stage's mixup."""
    smooth_head: Annotated[float, Field(ge=0, le=1)] = 0.4
    """ε of the most frequent class, the share of its label that goes to all C."""
    smooth_tail: Annotated[float, Field(ge=0, le=1)] = 0.1
    """ε of the rarest class."""
    epochs: Annotated[int, Field(ge=1)] = 10
    """Epochs of the second stage."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Highest learning rate of the factors there; it falls along a cosine."""
    classifier_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.02
    """The classifier's, which goes on from the first stage."""

    def stages(self) -> tuple[Stage, ...]:
        """Return the representation's stage, with mixup, and the classifier's."""
        first, second = super().stages()
        return replace(first, mixup=self.mixup), second

    def second_stage(self) -> Stage:
        """Return the training of classifier and factors under smoothed labels."""
        smoothing = partial(
            LabelAwareSmoothing,
            head=self.smooth_head,
            tail=self.smooth_tail,
            over_all=True,
        )
        return Stage(
            self.build_loss,
            ScaledLinearHead,
            title="classifier",
            fixed=("backbone",),
            samplers=("class_balanced",),
            epochs=self.epochs,
            lr=self.lr,
            own_groups=(OwnGroup("head.linear", self.classifier_lr),),
            schedule="cosine",
            mixup=0.0,
            label_smoothing=smoothing,
        )
