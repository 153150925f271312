"""Heads: from features to one logit for each class."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tailshift.registry import Registry


class Head(nn.Module):
    """Features (N, ``feature_dim``) in, logits (N, ``num_classes``) out."""

    feature_dim: int
    num_classes: int


class LinearHead(nn.Linear, Head):
    r"""Logits :math:`f = W x + b`, started as PyTorch starts a linear layer.

    Args:
        feature_dim: Length of the feature vector :math:`x`.
        num_classes: Number of logits.

    Example:
        >>> import torch
        >>> LinearHead(64, 10)(torch.zeros(2, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.feature_dim = feature_dim
        self.num_classes = num_classes


@dataclass(frozen=True)
class HeadInfo:
    """A registered head: how it is built and what it computes."""

    build: Callable[[int, int], Head]
    """Makes the head for a feature length and a number of classes."""
    sentence: str
    """What it computes, in one sentence."""


HEADS: Registry[HeadInfo] = Registry("head")
HEADS.add(
    "linear", HeadInfo(LinearHead, "An affine map: one weight vector and bias a class.")
)


def build_head(name: str, *, feature_dim: int, num_classes: int) -> Head:
    """Return the head registered as `name`.

    Args:
        name: One of ``HEADS``.
        feature_dim: Length of the feature vector.
        num_classes: Number of logits, at least 2.

    Example:
        >>> build_head("linear", feature_dim=64, num_classes=10)
        LinearHead(in_features=64, out_features=10, bias=True)
    """
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be >= 2, but is {num_classes}.")
    return HEADS.get(name).build(feature_dim, num_classes)
