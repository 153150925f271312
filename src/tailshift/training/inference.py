"""What a network gives for all images of a split."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tailshift.config import RunConfig
from tailshift.data import LongTailedData, Split
from tailshift.models import Classifier

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@torch.no_grad()
def outputs(
    fabric: "Fabric", module: nn.Module, split: Split, config: RunConfig
) -> tuple[Tensor, Tensor]:
    """Return a module's outputs, (N, …) in float32, and the labels, (N,).

    Images that cannot be read are left out, where the configuration says so.

    Args:
        fabric: Gives device and precision.
        module: Takes images (N, c, H, W); it is left in evaluation mode.
        split: Whose images, as they are, in its order.
        config: Gives batch size and workers.
    """
    loader = split.loader(
        batch_size=config.eval.batch_size,
        training=False,
        num_workers=config.train.num_workers,
    )
    precision = fabric.strategy.precision
    module.eval()
    given, labels = [], []
    for batch in loader.epoch(0):
        images = precision.convert_input(batch.images.to(fabric.device))
        with fabric.autocast():
            given.append(module(images).float().cpu())
        labels.append(batch.labels)
    return torch.cat(given), torch.cat(labels)


@dataclass(frozen=True)
class SplitFeatures:
    """Features of a trained backbone, for a head that begins from them."""

    fabric: "Fabric"
    model: Classifier
    data: LongTailedData
    config: RunConfig

    def train(self) -> tuple[Tensor, Tensor]:
        """Return features (N, d) and labels (N,) of the training images, unaltered."""
        return outputs(self.fabric, self.model.backbone, self.data.train, self.config)

    def val(self) -> tuple[Tensor, Tensor] | None:
        """Return those of the validation images; None where there are none."""
        split = self.data.val
        if split is None or not len(split):
            return None
        return outputs(self.fabric, self.model.backbone, split, self.config)
