"""OLTR: features completed from a memory of class centroids."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from tailshift.losses import Loss, centroid_loss
from tailshift.methods.method import METHODS, Decoupled, Stage
from tailshift.models import MemoryHead, MemoryOutput
from tailshift.processes import Processes


class OLTRLoss(Loss):
    """The cross-entropy of a memory head, plus a share of the centroids' loss.

    Args:
        centroid_weight: Weight of the centroids' loss, not negative.
    """

    spans_batch = True

    def __init__(self, centroid_weight: float) -> None:
        super().__init__()
        self.centroid_weight = centroid_weight

    def forward(self, output: MemoryOutput, labels: Tensor) -> Tensor:
        """Return the scalar loss."""
        centroids = centroid_loss(output.features, labels, output.centroids)
        return F.cross_entropy(output.logits, labels) + self.centroid_weight * centroids

    def over_processes(
        self, output: MemoryOutput, labels: Tensor, processes: Processes
    ) -> Tensor:
        """Return what averages over processes to the loss of all their samples.

        The hinge of the centroids' loss is one of the whole batch's mean.
        """
        losses = F.cross_entropy(output.logits, labels, reduction="none")
        centroids = centroid_loss(
            output.features, labels, output.centroids, processes=processes
        )
        return processes.mean(losses) + self.centroid_weight * centroids

    def class_losses(self, output: MemoryOutput) -> Tensor:
        """Return the cross-entropy for each possible label, shape (N, C)."""
        return -F.log_softmax(output.logits, dim=1)


@METHODS.register("oltr")
@dataclass(frozen=True)
class OLTR(Decoupled):
    """Open long-tailed recognition, its dynamic meta-embedding [liu2019]."""

    title = "OLTR"
    sentence = (
        "Softmax's network trained on with a memory of class centroids, on classes "
        "sampled equally often; its logits carry the sampler's prior, the uniform one."
    )
    citation = "liu2019"
    cost = 2.0

    epochs: Annotated[int, Field(ge=1)] | None = None
    """Epochs of the second stage; None takes as many as the first has."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """The head's highest learning rate there."""
    backbone_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """The backbone's."""
    centroid_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """What the centroids' loss counts beside the cross-entropy."""
    schedule: Literal["cosine", "multi_step"] = "cosine"
    """How the learning rate falls there; in steps, at the recipe's milestones."""

    def second_stage(self) -> Stage:
        """Return the training of the whole network with the memory."""
        return Stage(
            lambda class_counts: OLTRLoss(self.centroid_weight),
            MemoryHead,
            title="memory",
            samplers=("class_balanced",),
            epochs=self.epochs,
            lr=self.lr,
            backbone_lr=self.backbone_lr,
            schedule=self.schedule,
        )
