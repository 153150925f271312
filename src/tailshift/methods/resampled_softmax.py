"""Re-sampled Softmax: rare classes are sampled more often."""

from dataclasses import dataclass
from typing import Literal

from tailshift.methods.method import METHODS, Stage
from tailshift.methods.softmax import Softmax


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
