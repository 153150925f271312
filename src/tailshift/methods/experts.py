"""What methods with several experts share: network, head and the prior of the mean."""

from dataclasses import dataclass

from torch import Tensor

from tailshift import priors
from tailshift.losses.experts import ExpertsLoss
from tailshift.methods.method import Method
from tailshift.models import (
    Backbone,
    BranchedBackbone,
    ExpertHead,
    ExpertOutput,
    Head,
)
from tailshift.priors import VectorLike, as_prior


def aggregate_prior(expert_priors: Tensor, shares: VectorLike) -> Tensor:
    r"""Return the prior that experts' weighted logits carry, float64, shape (C,).

    .. math:: \pi(y) \propto \prod_k \pi_k(y)^{a_k}

    An expert's logits are :math:`\log p(x|y) + \log \pi_k(y)` up to a constant of x;
    weighted by shares that sum to 1 they add up to the same form. With equal shares it
    is the geometric mean.

    Args:
        expert_priors: :math:`\pi_k`, such as of :func:`~tailshift.losses.sade_priors`,
            shape (K, C).
        shares: :math:`a`, sum to 1, shape (K,).

    Example:
        >>> import torch
        >>> aggregate_prior(torch.tensor([[0.9, 0.1], [0.1, 0.9]]), [0.5, 0.5])
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    a = as_prior(shares, num_classes=len(expert_priors))
    return (a @ expert_priors.double().log()).softmax(0)


class LossOnExpertHead(ExpertsLoss):
    """Mix-in that takes an expert head's output instead of the experts' logits."""

    def forward(self, output: ExpertOutput, labels: Tensor) -> Tensor:  # type: ignore[override] # the head's form
        """Return the scalar loss."""
        return super().forward(output.experts, labels)

    def class_losses(self, output: ExpertOutput) -> Tensor:  # type: ignore[override] # the head's form
        """Return the loss for each possible label, shape (N, C)."""
        return super().class_losses(output.experts)


@dataclass(frozen=True)
class ExpertMethod(Method):
    """Base: experts that share a network's first stages, each with a logit prior.

    A subclass states :meth:`expert_priors`, the loss and the field `scale`.
    """

    scale: float = 30.0
    """s, the largest logit."""

    @property
    def num_experts(self) -> int:
        """K."""
        return 3

    def expert_priors(self, source_prior: Tensor) -> Tensor:
        """Return the logit prior of each expert, float64, shape (K, C)."""
        raise NotImplementedError

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the experts' classifiers."""
        return ExpertHead(
            feature_dim, num_classes, num_experts=self.num_experts, scale=self.scale
        )

    def branch(self, backbone: Backbone) -> Backbone:
        """Return the backbone with its last two stages once for each expert."""
        return BranchedBackbone(backbone, self.num_experts, at="last_two_stages")

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior of the experts' mean: the geometric mean of theirs."""
        return self.prior_of_shares(class_counts, priors.uniform(self.num_experts))

    def prior_of_shares(self, class_counts: Tensor, shares: VectorLike) -> Tensor:
        """Return the logit prior with other shares of the experts, shape (C,)."""
        return aggregate_prior(
            self.expert_priors(priors.from_counts(class_counts)), shares
        )
