"""τ-normalisation: the classifier's weight vectors made more alike in length."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

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

    tau: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """τ; chosen from 0, 0.1, …, 2 on validation images if it is not given."""

    @property
    def needs_validation(self) -> bool:
        """Whether images must be held out to choose τ on."""
        return self.tau is None

    def second_stage(self) -> Stage:
        """Return the shortening of the weights; nothing is trained."""
        head = partial(NormedLinearHead, tau=self.tau)
        return Stage(self.build_loss, head, title="weight lengths", epochs=0)

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))
