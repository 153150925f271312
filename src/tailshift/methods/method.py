"""What a method states: its loss, its head and the prior that its logits carry."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from tailshift.registry import Registry


@dataclass(frozen=True)
class Method:
    """Base of all methods; the fields of a subclass are its settings in a recipe."""

    title: ClassVar[str]
    """The name in the paper's tables, as reports show it."""
    sentence: ClassVar[str]
    """What it does, in one sentence."""
    citation: ClassVar[str]
    """Key in ``docs/references.bib``."""
    head: ClassVar[str] = "linear"
    """The classifier on top of the backbone."""

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the module that maps (logits, labels) to a scalar loss."""
        raise NotImplementedError

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior that the trained logits carry, float64, shape (C,)."""
        raise NotImplementedError


METHODS: Registry[type[Method]] = Registry("method")
