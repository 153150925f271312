"""Heads: from features to one logit for each class, one a file."""

from dataclasses import dataclass

from tailshift.models.heads.bilateral import BilateralHead
from tailshift.models.heads.causal import CausalHead
from tailshift.models.heads.class_means import ClassMeanHead, class_means
from tailshift.models.heads.cosine import CosineHead
from tailshift.models.heads.experts import ExpertHead, ExpertOutput
from tailshift.models.heads.head import Head, HeadBuilder, StageFeatures
from tailshift.models.heads.linear import LinearHead
from tailshift.models.heads.memory import MemoryHead, MemoryOutput
from tailshift.models.heads.normed_linear import NormedLinearHead
from tailshift.models.heads.scaled_linear import ScaledLinearHead
from tailshift.registry import Registry

__all__ = [
    "HEADS",
    "BilateralHead",
    "CausalHead",
    "ClassMeanHead",
    "CosineHead",
    "ExpertHead",
    "ExpertOutput",
    "Head",
    "HeadBuilder",
    "HeadInfo",
    "LinearHead",
    "MemoryHead",
    "MemoryOutput",
    "NormedLinearHead",
    "ScaledLinearHead",
    "StageFeatures",
    "build_head",
    "class_means",
]


@dataclass(frozen=True)
class HeadInfo:
    """A registered head: how it is built and what it computes."""

    build: HeadBuilder
    """Makes the head for a feature length and a number of classes."""
    sentence: str
    """What it computes, in one sentence."""


HEADS: Registry[HeadInfo] = Registry("head")
HEADS.add(
    "linear", HeadInfo(LinearHead, "An affine map: one weight vector and bias a class.")
)
HEADS.add(
    "cosine",
    HeadInfo(CosineHead, "The cosine with each class's vector, scaled."),
)
HEADS.add(
    "causal",
    HeadInfo(CausalHead, "Several normalised heads; at test less the mean feature."),
)
HEADS.add(
    "scaled_linear", HeadInfo(ScaledLinearHead, "A frozen affine map, scaled a class.")
)
HEADS.add(
    "normed_linear",
    HeadInfo(NormedLinearHead, "A trained linear map, its vectors shortened to ‖w‖^τ."),
)
HEADS.add(
    "class_means", HeadInfo(ClassMeanHead, "The distance to the mean of each class.")
)
HEADS.add(
    "bilateral", HeadInfo(BilateralHead, "One affine map over two mixed branches.")
)
HEADS.add(
    "memory",
    HeadInfo(MemoryHead, "The cosine of features completed from class centroids."),
)
HEADS.add("experts", HeadInfo(ExpertHead, "Three cosine heads, weighted by shares."))


def build_head(name: str, *, feature_dim: int, num_classes: int) -> Head:
    """Return the head registered as `name`, with its default settings.

    Args:
        name: One of ``HEADS``.
        feature_dim: Length of the feature vector.
        num_classes: Number of logits, at least 2.

    Example:
        >>> build_head("linear", feature_dim=64, num_classes=10)
        LinearHead(in_features=64, out_features=10, bias=True)
    """
    return check_and_build(HEADS.get(name).build, feature_dim, num_classes)


def check_and_build(build: HeadBuilder, feature_dim: int, num_classes: int) -> Head:
    """Return the head of a builder for at least two classes."""
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be >= 2, but is {num_classes}.")
    return build(feature_dim, num_classes)
