"""What a head is, and what it may take over from an earlier stage of training."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor, nn


class StageFeatures(Protocol):
    """Features of whole splits, as the trained backbone gives them."""

    def train(self) -> tuple[Tensor, Tensor]:
        """Return features (N, d) and labels (N,) of the training images, unaltered."""

    def val(self) -> tuple[Tensor, Tensor] | None:
        """Return those of the validation images; None where there are none."""


class Head(nn.Module):
    """Features (N, ``feature_dim``) in, logits (N, ``num_classes``) out."""

    feature_dim: int
    num_classes: int

    def begin(self, previous: "Head", features: StageFeatures) -> None:
        """Take over from the stage before; a head that does nothing starts afresh.

        Args:
            previous: The head that the stage before has trained.
            features: Of the backbone that it was trained with.
        """


HeadBuilder: TypeAlias = Callable[[int, int], Head]
"""Makes a head for a feature length and a number of classes."""
