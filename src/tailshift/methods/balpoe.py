"""BalPoE: a product of experts with different logit priors, balanced as a whole."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import BalPoELoss, balpoe_priors
from tailshift.losses.balpoe import EXPERT_TAUS
from tailshift.methods.experts import ExpertMethod, LossOnExpertHead
from tailshift.methods.method import METHODS


class _BalPoEOfExperts(LossOnExpertHead, BalPoELoss):
    """BalPoE's loss of an expert head's output."""


@METHODS.register("balpoe")
@dataclass(frozen=True)
class BalPoE(ExpertMethod):
    """Balanced product of calibrated experts [aimar2023], with SADE's network."""

    title = "BalPoE"
    sentence = (
        "Experts whose logits contain p_s^(1−τ) for τ = 0, 1, 2; the mean of their "
        "logits contains the uniform prior."
    )
    citation = "aimar2023"
    prior = "∝ p_s^(1 − mean τ): uniform"
    cost = 1.6

    taus: Annotated[
        tuple[Annotated[float, Field(allow_inf_nan=False)], ...],
        Field(min_length=2, max_length=10),
    ] = EXPERT_TAUS
    """τ of each expert, whose logits contain p_s^(1−τ)."""
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """s, the largest logit."""

    @property
    def num_experts(self) -> int:
        """K, one expert per τ."""
        return len(self.taus)

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the experts' losses for the prior of the counts."""
        return _BalPoEOfExperts(priors.from_counts(class_counts), taus=self.taus)

    def expert_priors(self, source_prior: Tensor) -> Tensor:
        """Return the logit prior of each expert, shape (K, C)."""
        return balpoe_priors(source_prior, taus=self.taus)
