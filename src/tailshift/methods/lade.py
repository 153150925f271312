"""LADE: Balanced Softmax plus the label distribution disentangling regulariser."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import LADELoss
from tailshift.losses.lader import LADERMode
from tailshift.methods.method import METHODS, Method


@METHODS.register("lade")
@dataclass(frozen=True)
class LADE(Method):
    """LADE-CE + α · LADER, [hong2021] Eq. (20)."""

    title = "LADE"
    sentence = (
        "Balanced Softmax with logits regularised towards log p_u(x|y)/p_u(x); "
        "they carry the uniform prior (Eq. 17)."
    )
    citation = "hong2021"
    prior = "uniform"
    compensates = True  # Eq. (17)

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """α, the weight of the regulariser in the loss."""
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """λ, the weight of the squared term inside the regulariser."""
    mode: LADERMode = "paper"
    """How the regulariser takes its expectation: see `tailshift.losses.lader`."""
    class_weights: Literal["source", "uniform"] = "source"
    """α_c: the source prior as in the paper, or 1/C."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the loss for the counts' prior."""
        p_s = priors.from_counts(class_counts)
        equal = priors.uniform(len(class_counts))
        return LADELoss(
            p_s,
            alpha=self.alpha,
            lam=self.lam,
            mode=self.mode,
            class_weights=p_s if self.class_weights == "source" else equal,
        )

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))
