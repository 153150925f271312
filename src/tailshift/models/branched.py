"""A backbone whose last part stands several times, side by side."""

import copy
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from tailshift.models.backbone import Backbone

TrainedOn: TypeAlias = Literal["all", "own_part"]
"""Whether every branch sees the whole batch in training, or each its part of it."""


class BranchedBackbone(Backbone):
    """A shared trunk and several tails; the features of all tails, side by side.

    The first tail is the backbone's own, the others start as its copies. With
    ``trained_on="own_part"`` a batch in training is a stack of as many equal parts as
    there are tails, and tail k reads part k: the two samplers of BBN [zhou2020]. The
    trunk then reads each part on its own too, so that batch statistics are of one part.

    Args:
        backbone: What to split; it must know how (:meth:`Backbone.split`).
        num_tails: How many branches.
        trained_on: What each tail reads in training.

    Example:
        >>> from tailshift.models import DigitsNet
        >>> backbone = BranchedBackbone(DigitsNet(), 2, trained_on="own_part")
        >>> backbone(torch.randn(8, 1, 8, 8)).shape  # four pairs
        torch.Size([4, 256])
        >>> backbone.eval()(torch.randn(8, 1, 8, 8)).shape
        torch.Size([8, 256])
    """

    def __init__(
        self, backbone: Backbone, num_tails: int, *, trained_on: TrainedOn = "all"
    ) -> None:
        super().__init__()
        split = backbone.split()
        self.trunk = split.trunk
        copies = (copy.deepcopy(split.tail) for _ in range(num_tails - 1))
        self.tails = nn.ModuleList([split.tail, *copies])
        self.feature_dim = num_tails * split.feature_dim
        self.trained_on = trained_on

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of all tails, shape (N, feature_dim)."""
        if self.training and self.trained_on == "own_part":
            parts = [self.trunk(part) for part in images.chunk(len(self.tails))]
        else:
            parts = [self.trunk(images)] * len(self.tails)
        features = [tail(x) for tail, x in zip(self.tails, parts, strict=True)]
        return torch.cat(features, dim=1)
