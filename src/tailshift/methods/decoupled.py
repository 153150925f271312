"""The two stages of decoupled training [kang2020]."""

from dataclasses import dataclass

from torch import Tensor, nn

from tailshift import priors
from tailshift.losses import CrossEntropyLoss
from tailshift.methods.method import Method
from tailshift.methods.stage import Stage


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

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the prior of the labels that the second stage was served."""
        return priors.from_counts(class_counts)
