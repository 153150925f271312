"""τ-normalisation: the classifier's weight vectors made more alike in length."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from tailshift import priors
from tailshift.methods.method import METHODS, Decoupled, Stage
from tailshift.models import NormedLinearHead


@METHODS.register("tau_norm")
@dataclass(frozen=True)
class TauNorm(Decoupled):
    """τ-normalised classifier [kang2020]."""

    title = "τ-norm"
    sentence = (
        "Softmax's network with each class's weight vector divided by its length to "
        "the τ, no bias; its logits are taken to carry the uniform prior."
    )
    prior = "uniform, by convention"

    tau: (
        Annotated[float, Field(ge=0, allow_inf_nan=False)]
        | Literal["auto", "held_out"]
        | None
    ) = "auto"
    """τ, or how it is chosen from 0, 0.1, …, 2, never on test images: ``"auto"`` takes
    the validation images or, if there are none, the training images, which tell as
    long as the rare classes are not learnt by heart. ``"held_out"`` (None, in runs of
    version 0.1) holds a tenth of the training images out if there are none."""

    @property
    def needs_validation(self) -> bool:
        """Whether images must be held out to choose τ on."""
        return self.tau in ("held_out", None)

    def second_stage(self) -> Stage:
        """Return the shortening of the weights; nothing is trained."""
        given = self.tau if isinstance(self.tau, int | float) else None
        may_train = self.tau == "auto"
        head = partial(NormedLinearHead, tau=given, choose_on_training=may_train)
        return Stage(self.build_loss, head, title="weight lengths", epochs=0)

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))
