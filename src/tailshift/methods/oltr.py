"""OLTR: features completed from a memory of class centroids."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from tailshift.losses import Loss, centroid_loss, centroid_pull
from tailshift.methods.method import METHODS, Decoupled, OwnGroup, Stage
from tailshift.models import AttentiveBackbone, Backbone, MemoryHead, MemoryOutput
from tailshift.processes import Processes

FEATURE_DIM = 512
"""Features that the memory holds."""


class OLTRLoss(Loss):
    """The cross-entropy of a memory head, plus a share of the centroids' loss.

    The centroids move by a rule that this share does not scale
    (:func:`~tailshift.losses.centroid_pull`).

    Args:
        centroid_weight: Weight of the centroids' loss, not negative.
    """

    spans_batch = True

    def __init__(self, centroid_weight: float) -> None:
        super().__init__()
        self.centroid_weight = centroid_weight

    def forward(self, output: MemoryOutput, labels: Tensor) -> Tensor:
        """Return the scalar loss."""
        losses = F.cross_entropy(output.logits, labels)
        return losses + self._of_centroids(output, labels, None)

    def over_processes(
        self, output: MemoryOutput, labels: Tensor, processes: Processes
    ) -> Tensor:
        """Return what averages over processes to the loss of all their samples.

        The hinge of the centroids' loss is one of the whole batch's mean.
        """
        losses = F.cross_entropy(output.logits, labels, reduction="none")
        return processes.mean(losses) + self._of_centroids(output, labels, processes)

    def _of_centroids(
        self, output: MemoryOutput, labels: Tensor, processes: Processes | None
    ) -> Tensor:
        x, c = output.features, output.centroids
        share = self.centroid_weight * centroid_loss(x, labels, c, processes=processes)
        return share + centroid_pull(x, labels, c, processes=processes)

    def class_losses(self, output: MemoryOutput) -> Tensor:
        """Return the cross-entropy for each possible label, shape (N, C)."""
        return -F.log_softmax(output.logits, dim=1)


@METHODS.register("oltr")
@dataclass(frozen=True)
class OLTR(Decoupled):
    """Open long-tailed recognition: attention and dynamic meta-embedding [liu2019].

    The network is the method's own, also in the first stage, which has a layer of 512
    features that Softmax does not: it cannot come from a run of Softmax.
    """

    title = "OLTR"
    sentence = (
        "A trained network trained on with attention and a memory of class centroids, "
        "on classes sampled equally often; its logits carry the sampler's prior."
    )
    citation = "liu2019"
    cost = 2.0

    epochs: Annotated[int, Field(ge=1)] | None = None
    """Epochs of the second stage; None takes as many as the first has."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """The head's highest learning rate there."""
    backbone_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """The backbone's, its attention and its last layer included."""
    freeze_backbone: bool = False
    """Whether the second stage trains attention and last layer of the backbone only,
    as on Places-LT."""
    centroid_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """The centroids'; they do not decay."""
    centroid_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """What the centroids' loss counts beside the cross-entropy."""
    schedule: Literal["cosine", "multi_step"] = "cosine"
    """How the learning rate falls there; in steps, at the recipe's milestones."""

    def branch(self, backbone: Backbone) -> Backbone:
        """Return the backbone with attention and a layer of 512 features."""
        return AttentiveBackbone(backbone, FEATURE_DIM)

    def stages(self) -> tuple[Stage, ...]:
        """Return a first stage without attention, which adds nothing yet, and both."""
        first, second = super().stages()
        return replace(first, frozen=("backbone.attention",)), second

    def second_stage(self) -> Stage:
        """Return the training of the whole network with the memory."""
        return Stage(
            lambda class_counts: OLTRLoss(self.centroid_weight),
            MemoryHead,
            title="memory",
            frozen=("backbone.trunk",) if self.freeze_backbone else (),
            samplers=("class_balanced",),
            epochs=self.epochs,
            lr=self.lr,
            backbone_lr=self.backbone_lr,
            schedule=self.schedule,
            own_groups=(OwnGroup("head.centroids", self.centroid_lr, decays=False),),
        )
