"""LWS: one scale for each class of a frozen classifier."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tailshift.methods.method import METHODS, Decoupled, Stage
from tailshift.models import ScaledLinearHead


@METHODS.register("lws")
@dataclass(frozen=True)
class LWS(Decoupled):
    """Learnable weight scaling [kang2020]."""

    title = "LWS"
    sentence = (
        "Softmax's network, frozen, and one learnt factor for the logit of each class; "
        "its logits carry the sampler's prior, the uniform one, by convention."
    )
    cost = 1.1

    epochs: Annotated[int, Field(ge=1)] = 5
    """Epochs of the second stage."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """Its highest learning rate; it falls along a cosine."""

    def second_stage(self) -> Stage:
        """Return the training of the scales."""
        return Stage(
            self.build_loss,
            ScaledLinearHead,
            title="scales",
            frozen=("backbone", "head.linear"),
            samplers=("class_balanced",),
            epochs=self.epochs,
            lr=self.lr,
            schedule="cosine",
        )
