"""NCM: the class whose mean feature is nearest."""

from dataclasses import dataclass

from torch import Tensor

from tailshift import priors
from tailshift.methods.method import METHODS, Decoupled, Stage
from tailshift.models import ClassMeanHead


@METHODS.register("ncm")
@dataclass(frozen=True)
class NCM(Decoupled):
    """Nearest class mean [kang2020]."""

    title = "NCM"
    sentence = (
        "Softmax's backbone and the distance to each class's mean feature; its logits "
        "are taken to carry the uniform prior, since every mean counts alike."
    )
    prior = "uniform, by convention"

    def second_stage(self) -> Stage:
        """Return the taking of the means; nothing is trained."""
        return Stage(self.build_loss, ClassMeanHead, title="class means", epochs=0)

    def trained_prior(self, class_counts: Tensor) -> Tensor:
        """Return the uniform prior."""
        return priors.uniform(len(class_counts))
