"""What a method states: its network, its stages and the prior that its logits carry."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from tailshift.methods.stage import Stage
from tailshift.models import Backbone, Head, LinearHead
from tailshift.registry import Registry


@dataclass(frozen=True)
class Method:
    """Base of all methods; the fields of a subclass are its settings in a recipe.

    A method of one stage states :meth:`build_loss` and, where it is not linear,
    :meth:`build_head`; one of several states :meth:`stages`.
    """

    title: ClassVar[str]
    """The name in the paper's tables, as reports show it."""
    sentence: ClassVar[str]
    """What it does, in one sentence."""
    citation: ClassVar[str]
    """Key in ``docs/references.bib``."""
    prior: ClassVar[str]
    """The prior that its logits carry, in words."""
    cost: ClassVar[float] = 1.0
    """Processor time of a run, as a multiple of Softmax's: `make bench` measures it."""

    @property
    def needs_validation(self) -> bool:
        """Whether a setting is chosen on images that no stage trains on."""
        return False

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the module that maps (output, labels) to a scalar loss.

        Args:
            class_counts: How often an epoch serves each class, shape (C,).
        """
        raise NotImplementedError

    def build_head(self, feature_dim: int, num_classes: int) -> Head:
        """Return the classifier that is trained with the backbone."""
        return LinearHead(feature_dim, num_classes)

    def branch(self, backbone: Backbone) -> Backbone:
        """Return the backbone in the form that the method trains."""
        return backbone

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of training, in order."""
        return (Stage(self.build_loss, self.build_head),)

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior that the trained logits carry, float64, shape (C,).

        Args:
            class_counts: How often the last stage serves each class, shape (C,).
        """
        raise NotImplementedError


METHODS: Registry[type[Method]] = Registry("method")
