"""Outputs of a network for all images of a split, in training."""

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

    The outputs are computed in float32 (float64 under 64-true), also if training uses
    mixed precision: a network then gives the same logits everywhere. Images that
    cannot be read are skipped with ``data.skip_broken``. Several processes share the
    images, and each of them gets all outputs.

    Args:
        fabric: Fabric with device and precision.
        module: Module that takes images (N, c, H, W); it stays in evaluation mode.
            Outputs for several views of an image are averaged.
        split: Split whose images are used, without augmentation and in order.
        config: Configuration with batch size and number of workers.
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
            ids, output = _gather_batch(batch.sample_ids, output, fabric, config)
            given.append(output)
            labels.append(split.labels[ids])
    return torch.cat(given), torch.cat(labels)


def validate(
    fabric: "Fabric", model: nn.Module, data: LongTailedData, config: RunConfig
) -> dict[str, float]:
    """Return the validation accuracy as trained, overall and by class group.

    It has no effect on training: random generators and each process's batch statistics
    are restored.

    Args:
        fabric: Fabric with device and precision.
        model: Model to evaluate; it stays in evaluation mode.
        data: Data with a validation split.
        config: Configuration with batch size and number of workers.

    Returns:
        ``val_accuracy``, ``val_balanced_accuracy`` (the mean over the classes with
        images) and ``val_accuracy_GROUP`` for each class group with images. Empty
        without validation images, or if a logit is not finite.
    """
    if data.val is None or not len(data.val):
        return {}
    device = fabric.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        own = [b.clone() for b in model.buffers()] if fabric.world_size > 1 else []
        logits, labels = outputs(fabric, model, data.val, config)
        for buffer, before in zip(model.buffers(), own, strict=False):
            buffer.copy_(before)
    if not logits.isfinite().all():  # the next check reports it
        return {}
    shares = 1 / labels.bincount().double()  # weight of each image of a class
    groups = metrics.group_accuracy(logits, labels, data.group_counts)
    return {
        "val_accuracy": metrics.accuracy(logits, labels),
        "val_balanced_accuracy": metrics.accuracy(
            logits, labels, sample_weights=shares[labels]
        ),
        **{f"val_accuracy_{k}": v for k, v in groups.items() if not math.isnan(v)},
    }


def _gather_batch(
    sample_ids: Tensor, output: Tensor, fabric: "Fabric", config: RunConfig
) -> tuple[Tensor, Tensor]:
    """Return the outputs of all processes for a batch, sorted by id, on the CPU.

    Args:
        sample_ids: Sample ids of this process, shape (n,).
        output: Outputs of this process, shape (n, …).
        fabric: Fabric with the processes.
        config: Configuration with the batch size over all processes.
    """
    if fabric.world_size == 1:
        return sample_ids, output.cpu()
    most = math.ceil(config.eval.batch_size / fabric.world_size)
    processes = Processes(fabric.world_size, max_samples=most)
    ids = processes.labels(
        sample_ids.to(output.device)
    ).cpu()  # −1 where a process has no sample
    blank = output.new_zeros(most - len(output), *output.shape[1:])
    rows = processes.gather(torch.cat([output, blank])).flatten(0, 1).cpu()
    order = ids.argsort(stable=True)[(ids < 0).sum() :]
    return ids[order], rows[order]


@dataclass(frozen=True)
class SplitFeatures:
    """Features of a trained backbone, to initialise a head."""

    fabric: "Fabric"
    model: Classifier
    data: LongTailedData
    config: RunConfig

    def train(self) -> tuple[Tensor, Tensor]:
        """Return features (N, d) and labels (N,) of the training images."""
        return outputs(self.fabric, self.model.backbone, self.data.train, self.config)

    def val(self) -> tuple[Tensor, Tensor] | None:
        """Return the same for the validation images; None if there are none."""
        split = self.data.val
        if split is None or not len(split):
            return None
        return outputs(self.fabric, self.model.backbone, split, self.config)
