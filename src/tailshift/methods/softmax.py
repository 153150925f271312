"""Softmax, plain, re-weighted and re-sampled; PC Softmax is the first, compensated."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import CrossEntropyLoss, WeightedCrossEntropyLoss
from tailshift.methods.method import METHODS, Method, Stage


@METHODS.register("softmax")
@dataclass(frozen=True)
class Softmax(Method):
    """Cross-entropy, [hong2021] Eq. (1) and (2)."""

    title = "Softmax"
    sentence = "Cross-entropy; its logits carry the source prior (Theorem 1)."
    citation = "hong2021"
    prior = "source"

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the cross-entropy; the counts do not matter."""
        return CrossEntropyLoss()

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior."""
        return priors.from_counts(class_counts)


@METHODS.register("reweighted_softmax")
@dataclass(frozen=True)
class ReweightedSoftmax(Method):
    """Cross-entropy with class weights: the re-weighting baselines."""

    title = "Re-weighted Softmax"
    sentence = (
        "Cross-entropy weighted by 1/n or 1/√n of each class; its logits carry the "
        "source prior times the weights."
    )
    citation = "cui2019"
    prior = "∝ p_s · weights"

    weights: Literal["class_balanced", "square_root"] = "class_balanced"
    """By 1/n, which makes all classes count alike, or by 1/√n, half way."""

    def class_weights(self, class_counts: Tensor) -> Tensor:
        """Return the weights, of mean 1 over the samples, float64, shape (C,)."""
        power = -1.0 if self.weights == "class_balanced" else -0.5
        return with_mean_1(class_counts.double() ** power, class_counts)

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the weighted cross-entropy."""
        return WeightedCrossEntropyLoss(self.class_weights(class_counts))

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the source prior times the weights."""
        return weighted_prior(class_counts, self.class_weights(class_counts))


def weighted_prior(class_counts: Tensor, weights: Tensor) -> Tensor:
    r"""Return what the logits of a weighted cross-entropy carry, :math:`\propto p_s w`.

    Args:
        class_counts: How often each class is sampled, shape (C,).
        weights: Weight of each class's samples in the loss, shape (C,).

    Example:
        >>> import torch
        >>> weighted_prior(torch.tensor([90, 10]), torch.tensor([1.0, 9.0]))
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return priors.from_counts(class_counts.double() * weights.double())


def with_mean_1(weights: Tensor, class_counts: Tensor) -> Tensor:
    """Return the weights scaled so that their mean over all samples is 1.

    The loss, and with it the fitting learning rate, then keeps its size.

    Example:
        >>> import torch
        >>> with_mean_1(torch.tensor([1.0, 3.0]), torch.tensor([2, 2]))
        tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    p_s = priors.from_counts(class_counts)
    return weights.double() / (p_s * weights.double()).sum()


@METHODS.register("resampled_softmax")
@dataclass(frozen=True)
class ResampledSoftmax(Softmax):
    """Cross-entropy of images drawn by class: the re-sampling baselines."""

    title = "Re-sampled Softmax"
    sentence = (
        "Cross-entropy of images that a sampler draws by class; its logits carry the "
        "sampler's prior."
    )
    citation = "kang2020"
    prior = "the sampler's"

    sampler: Literal["class_balanced", "square_root", "progressive", "reverse"] = (
        "class_balanced"
    )
    """A name of `tailshift.data.samplers`."""

    def stages(self) -> tuple[Stage, ...]:
        """Return the one stage, with the sampler."""
        return (Stage(self.build_loss, self.build_head, samplers=(self.sampler,)),)
