"""cRT: the classifier trained again, on classes sampled equally often."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tailshift.methods.method import METHODS, Decoupled, Stage


@METHODS.register("crt")
@dataclass(frozen=True)
class CRT(Decoupled):
    """Classifier re-training [kang2020]."""

    title = "cRT"
    sentence = (
        "Softmax's backbone, frozen, and a new linear classifier trained on classes "
        "sampled equally often; its logits carry the sampler's prior, the uniform one."
    )
    cost = 1.1

    epochs: Annotated[int, Field(ge=1)] = 10
    """Epochs of the second stage."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """Its highest learning rate; it falls along a cosine."""

    def second_stage(self) -> Stage:
        """Return the training of a fresh classifier."""
        return Stage(
            self.build_loss,
            title="classifier",
            frozen=("backbone",),
            samplers=("class_balanced",),
            epochs=self.epochs,
            lr=self.lr,
            schedule="cosine",
        )
