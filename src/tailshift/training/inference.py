"""What a network gives for all images of a split."""

import math
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tailshift import metrics
from tailshift.config import RunConfig
from tailshift.data import LongTailedData, Split
from tailshift.models import Classifier
from tailshift.models.classifier import over_views
from tailshift.processes import Processes
from tailshift.training.distributed import share_buffers

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@torch.no_grad()
def outputs(
    fabric: "Fabric", module: nn.Module, split: Split, config: RunConfig
) -> tuple[Tensor, Tensor]:
    """Return a module's outputs, (N, …), and the labels, (N,).

    They are computed in float32 (float64 under 64-true) also if training is in mixed
    precision, so that a network gives the same logits wherever it is used.

    Images that cannot be read are skipped, if the configuration says so. Several
    processes share the images, and all of them get all outputs.

    Args:
        fabric: Gives device and precision.
        module: Takes images (N, c, H, W); it is left in evaluation mode. What it gives
            for several views of an image is averaged.
        split: Whose images, as they are, in its order.
        config: Gives batch size and workers.
    """
    loader = split.loader(
        batch_size=config.eval.batch_size,
        training=False,
        num_workers=config.train.num_workers,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    share_buffers(module, fabric)
    precision = fabric.strategy.precision
    is_mixed = config.train.precision.endswith("-mixed")
    module.eval()
    given, labels = [], []
    with closing(loader):
        for batch in loader.epoch(0):
            images = batch.images.to(fabric.device)
            if is_mixed:
                output = over_views(module, images)
            else:
                with fabric.autocast():  # float64 needs it
                    output = over_views(module, precision.convert_input(images))
            ids, output = gather_batch(batch.sample_ids, output, fabric, config)
            given.append(output)
            labels.append(split.labels[ids])
    return torch.cat(given), torch.cat(labels)


def validate(
    fabric: "Fabric", model: nn.Module, data: LongTailedData, config: RunConfig
) -> dict[str, float]:
    """Return the accuracy on the validation images, of all and of groups of classes.

    Training goes on as if it had not been asked for: no generator is moved and each
    process keeps its batch statistics. The logits are taken as they are.

    Args:
        fabric: Gives device and precision.
        model: It is left in evaluation mode.
        data: The splits.
        config: Gives batch size and workers.

    Returns:
        ``val_accuracy``, ``val_balanced_accuracy`` (the mean over the classes that
        there are images of) and ``val_accuracy_GROUP`` for each group of classes with
        images. Nothing without validation images, or if a logit is not finite.
    """
    if data.val is None or not len(data.val):
        return {}
    device = fabric.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        own = [b.clone() for b in model.buffers()] if fabric.world_size > 1 else []
        logits, labels = outputs(fabric, model, data.val, config)
        for buffer, before in zip(model.buffers(), own, strict=False):
            buffer.copy_(before)
    if not logits.isfinite().all():  # what is written next says so
        return {}
    shares = 1 / labels.bincount().double()  # of a class's images, each
    groups = metrics.group_accuracy(logits, labels, data.group_counts)
    return {
        "val_accuracy": metrics.accuracy(logits, labels),
        "val_balanced_accuracy": metrics.accuracy(
            logits, labels, sample_weights=shares[labels]
        ),
        **{f"val_accuracy_{k}": v for k, v in groups.items() if not math.isnan(v)},
    }


def gather_batch(
    sample_ids: Tensor, output: Tensor, fabric: "Fabric", config: RunConfig
) -> tuple[Tensor, Tensor]:
    """Return the samples of all processes' shares of a batch, by id, on the CPU.

    Args:
        sample_ids: Sample ids of this process, shape (n,).
        output: Rows of this process, shape (n, …).
        fabric: Gives the processes.
        config: Gives the size of a whole batch.
    """
    if fabric.world_size == 1:
        return sample_ids, output.cpu()
    most = math.ceil(config.eval.batch_size / fabric.world_size)
    processes = Processes(fabric.world_size, max_samples=most)
    ids = processes.labels(sample_ids.to(output.device)).cpu()  # −1 if there is none
    blank = output.new_zeros(most - len(output), *output.shape[1:])
    rows = processes.gather(torch.cat([output, blank])).flatten(0, 1).cpu()
    order = ids.argsort(stable=True)[(ids < 0).sum() :]
    return ids[order], rows[order]


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
        """Return those of the validation images; None if there are none."""
        split = self.data.val
        if split is None or not len(split):
            return None
        return outputs(self.fabric, self.model.backbone, split, self.config)
