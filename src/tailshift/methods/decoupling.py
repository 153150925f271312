"""Decoupling: cRT, LWS, τ-norm and NCM change the classifier of Softmax's network."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from tailshift import priors
from tailshift.methods.method import METHODS, Decoupled, Stage
from tailshift.models import ClassMeanHead, NormedLinearHead, ScaledLinearHead


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

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))


@METHODS.register("ncm")
@dataclass(frozen=True)
class NCM(Decoupled):
    """Nearest class mean [kang2020]."""

    title = "NCM"
    sentence = (
        "Softmax's backbone and the distance to each class's mean feature; its logits "
        "are taken to carry the uniform prior, since every mean counts alike."
    )
    prior = "uniform, by convention"

    def second_stage(self) -> Stage:
        """Return the taking of the means; nothing is trained."""
        return Stage(self.build_loss, ClassMeanHead, title="class means", epochs=0)

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))
