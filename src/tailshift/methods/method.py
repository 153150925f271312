"""What a method states: its network, its stages and the prior that its logits carry."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from tailshift import priors
from tailshift.deprecation import renamed_attribute, warn_deprecated
from tailshift.losses import CrossEntropyLoss
from tailshift.models import Backbone, Head, HeadBuilder, LinearHead
from tailshift.registry import Registry


class OwnGroup(NamedTuple):
    """Parameters with a learning rate of their own."""

    name: str
    """A parameter of the network, or a part of it."""
    lr: float
    """Their highest learning rate."""
    decays: bool = True
    """Whether their weights decay."""

    def holds(self, parameter: str) -> bool:
        """Return whether a parameter of that name belongs to them."""
        return f"{parameter}.".startswith(f"{self.name}.")


@dataclass(frozen=True)
class Stage:
    """A part of training with one head, one loss and one way to sample the images.

    Whatever is None is the recipe's.
    """

    loss: Callable[[Tensor], nn.Module]
    """From how often each class is sampled, (C,), to the loss of (output, labels)."""
    head: HeadBuilder = LinearHead
    """The classifier on top of the backbone."""
    title: str = "whole network"
    """What is trained, for progress and lists."""
    frozen: tuple[str, ...] = ()
    """Parts of the network that keep their weights and statistics."""
    fixed: tuple[str, ...] = ()
    """Parts that keep their weights while their batch statistics go on moving."""
    samplers: tuple[str, ...] | None = None
    """Names of `tailshift.data.samplers`. Of several, each gives a batch of its own,
    and a step reads them stacked."""
    epochs: int | None = None
    """Number of epochs; 0 if the head is computed and not trained."""
    lr: float | None = None
    """The highest learning rate."""
    backbone_lr: float | None = None
    """The highest learning rate of the backbone, if it has its own."""
    own_groups: tuple[OwnGroup, ...] = ()
    """Parts of the network with a highest learning rate of their own."""
    schedule: str | None = None
    """A name of :data:`~tailshift.methods.SCHEDULES`."""
    mixup: float | None = None
    """α of mixup; 0 blends nothing."""
    label_smoothing: Callable[[nn.Module, Tensor], nn.Module] | None = None
    """From the loss and the training images of each class, (C,), to the loss under
    smoothed labels."""


@dataclass(frozen=True)
class Method:
    """Base of all methods; the fields of a subclass are its settings in a recipe.

    A method of one stage states :meth:`build_loss` and, if it is not linear,
    :meth:`build_head`; one of several states :meth:`stages`.
    """

    title: ClassVar[str]
    """The name in the paper's tables, as reports show it."""
    sentence: ClassVar[str]
    """What it does, in one sentence; by default the docstring's first line."""
    citation: ClassVar[str] = ""
    """Key in ``docs/references.bib``, if there is a paper."""
    prior: ClassVar[str]
    """The prior that its logits carry, in words."""
    compensates: ClassVar[bool] = False
    """Whether its inference is the compensation, so that tables show no raw row."""
    cost: ClassVar[float] = 1.0
    """Processor time of a run, as a multiple of Softmax's: `make bench` measures it."""

    @property
    def needs_validation(self) -> bool:
        """Whether a setting is chosen on images that no stage trains on."""
        return False

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the module that maps (output, labels) to a scalar loss.

        Args:
            class_counts: How often an epoch samples each class, shape (C,).
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

    trained_prior = renamed_attribute("trained_prior", "logit_prior")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Take the method of a plugin that still states it under the old name."""
        super().__init_subclass__(**kwargs)
        old = vars(cls).get("trained_prior")
        if old is not None and "logit_prior" not in vars(cls):
            warn_deprecated(f"{cls.__name__}.trained_prior", "`logit_prior`")
            cls.logit_prior = old  # type: ignore[method-assign]

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior that the trained logits carry, float64, shape (C,).

        Args:
            class_counts: How often the last stage samples each class, shape (C,).
        """
        raise NotImplementedError

    def log_posteriors(self, logits: Tensor) -> Tensor:
        """Return trained logits (…, C) as log posteriors, up to a constant a row.

        They are posteriors under :meth:`logit_prior`, and what the network gives
        outside training: all that compensates takes them. By default the logits are
        log posteriors already.

        Args:
            logits: What the loss was trained on, shape (…, C).
        """
        return logits


METHODS: Registry[type[Method]] = Registry("method", Method)


@dataclass(frozen=True)
class Decoupled(Method):
    """Base: the network as Softmax trains it, then another classifier on it.

    The first stage may come from a finished run (``train --from RUN``), so that several
    methods share it.
    """

    citation = "kang2020"
    prior = "the sampler's"

    def build_loss(self, class_counts: Tensor) -> nn.Module:
        """Return the cross-entropy, of both stages; the counts do not matter."""
        return CrossEntropyLoss()

    def second_stage(self) -> Stage:
        """Return what is done with the trained network."""
        raise NotImplementedError

    def stages(self) -> tuple[Stage, ...]:
        """Return the representation's stage and the classifier's."""
        return (*super().stages(), self.second_stage())

    def logit_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior of the labels that the second stage sampled."""
        return priors.from_counts(class_counts)
