"""OLTR: attention, and features completed from a memory of class centroids."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from tailshift.losses import Loss, centroid_loss, centroid_pull
from tailshift.methods.method import METHODS, Decoupled, OwnGroup, Stage
from tailshift.models import Backbone, MemoryHead, MemoryOutput
from tailshift.processes import Processes

_FEATURE_DIM = 512
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


class ModulatedAttention(nn.Module):
    r"""Feature maps in, maps of the same shape out: self-attention, modulated by place.

    .. math:: x + \mathrm{MA}(x) \odot \mathrm{SA}(x)

    [liu2019]. :math:`\mathrm{SA}` lets each place look at all others: with 1×1
    convolutions :math:`q, k, v` to half the channels and :math:`u` back, at place i it
    is :math:`u \sum_j \mathrm{softmax}_j(q_i \cdot k_j)\, v_j`. :math:`\mathrm{MA}`, a
    softmax over places of one affine map of all of x, says where this counts. As
    :math:`u` starts at 0, nothing is added at first.

    Args:
        num_channels: Channels of the maps.
        height: Height of the maps; the affine map is made for it.
        width: Width of the maps.

    Example:
        >>> attention, x = ModulatedAttention(8, 2, 3), torch.randn(5, 8, 2, 3)
        >>> torch.equal(attention(x), x)  # not trained yet
        True
    """

    def __init__(self, num_channels: int, height: int, width: int) -> None:
        super().__init__()
        self.size = (height, width)
        inner, places = max(num_channels // 2, 1), height * width
        self.query = nn.Conv2d(num_channels, inner, 1)
        self.key = nn.Conv2d(num_channels, inner, 1)
        self.value = nn.Conv2d(num_channels, inner, 1)
        self.back = nn.Conv2d(inner, num_channels, 1, bias=False)
        self.place = nn.Linear(num_channels * places, places)
        for layer in (self.query, self.key, self.value):
            assert layer.bias is not None
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.back.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps, shape (N, c, h, w), of `x`, of the same shape."""
        if x.shape[2:] != self.size:
            height, width = self.size
            raise ValueError(
                f"images must give maps of {height} × {width}, since OLTR's attention "
                f"was made for them, but give {x.shape[2]} × {x.shape[3]}. Resize them "
                "to the size of the training images."
            )
        q, k, v = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))
        looks = (q.mT @ k).softmax(dim=2)  # (N, places, places), each row sums to 1
        seen = (v @ looks.mT).unflatten(2, self.size)  # (N, c / 2, h, w)
        places = self.place(x.flatten(1)).softmax(dim=1).unflatten(1, self.size)
        added: Tensor = places[:, None] * self.back(seen)  # (N, c, h, w)
        return x + added


class AttentiveBackbone(Backbone):
    """A backbone with modulated attention before its pooling, and a layer after it.

    The network of OLTR [liu2019]: the layer, with ReLU, gives the features that its
    memory holds. Until attention is trained, the backbone's own features reach it.

    Args:
        backbone: What to split; it must know how (:meth:`Backbone.split`).
        feature_dim: Features of the layer.

    Example:
        >>> from tailshift.models import DigitsNet
        >>> AttentiveBackbone(DigitsNet(), 512)(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 512])
    """

    def __init__(self, backbone: Backbone, feature_dim: int) -> None:
        super().__init__()
        split = backbone.split("pooling")
        self.trunk, (self.pool,) = split.trunk, split.tails
        self.attention = ModulatedAttention(*_map_shape(backbone, self.trunk))
        self.layer = nn.Linear(split.feature_dim, feature_dim)
        self.feature_dim = feature_dim

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, shape (N, feature_dim), of `images`, (N, c, H, W)."""
        maps = self.attention(self.trunk(images))
        return F.relu(self.layer(self.pool(maps)))


@torch.no_grad()
def _map_shape(backbone: Backbone, trunk: nn.Module) -> torch.Size:
    """Return channels, height and width of what the trunk gives for an image."""
    size = backbone.image_size
    was_training = trunk.training
    maps: Tensor = trunk.eval()(torch.zeros(1, backbone.in_channels, size, size))
    trunk.train(was_training)
    return maps.shape[1:]


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
        return AttentiveBackbone(backbone, _FEATURE_DIM)

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
