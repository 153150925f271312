"""What a head is, and what it may take over from an earlier stage of training."""

from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

from torch import Tensor, nn

from tailshift.processes import Processes
from tailshift.registry import Registry


class StageFeatures(Protocol):
    """Features of whole splits, as the trained backbone gives them."""

    def train(self) -> tuple[Tensor, Tensor]:
        """Return features (N, d) and labels (N,) of the training images, unaltered."""

    def val(self) -> tuple[Tensor, Tensor] | None:
        """Return those of the validation images; None if there are none."""


class Head(nn.Module):
    """Features (N, ``feature_dim``) in, logits (N, ``num_classes``) out.

    In training it may give a named tuple instead, with the logits as ``logits`` and
    what else its loss needs; all of it tensors. Everything below has a default.
    """

    sentence: ClassVar[str]
    """What it computes, in one sentence; by default the docstring's first line."""
    feature_dim: int
    num_classes: int

    def begin(self, previous: "Head", features: StageFeatures) -> None:
        """Take over from the stage before; a head that does nothing starts afresh.

        Args:
            previous: The head that the stage before has trained.
            features: Features of the backbone that it was trained with.
        """

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Get ready for an epoch; by default nothing changes.

        What it sets must depend on the arguments alone: a resumed run begins anywhere.

        Args:
            epoch: The epoch, counted from 0 in each stage.
            num_epochs: Epochs of the stage.
        """

    def gather_batches(self, processes: Processes) -> None:
        """Wait for :meth:`end_batch` with what is averaged over batches, if anything.

        Called once before a training whose batches several processes share, or which
        are read in pieces.

        Args:
            processes: The processes that train together.
        """

    def end_batch(self) -> None:
        """Take in what all processes have read since the last call."""


HeadBuilder: TypeAlias = Callable[[int, int], Head]
"""Makes a head for a feature length and a number of classes."""

HEADS: Registry[HeadBuilder] = Registry("head", Head)
