"""Build the trainer of a stage: loss, batches, optimiser and schedule."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tailshift.config import RunConfig
from tailshift.data import Batches, LongTailedData, StackedLoader
from tailshift.data.feature_split import FeatureLoader
from tailshift.losses import LabelAwareSmoothing
from tailshift.methods import Stage
from tailshift.methods.method import OwnGroup
from tailshift.methods.schedules import Course, build_schedule
from tailshift.models import Classifier, layer_rates
from tailshift.models.timm_backbone import LayerRate
from tailshift.runs.checkpoint import Position
from tailshift.runs.network import freeze, train_adapters
from tailshift.training import distributed
from tailshift.training.head_fit import HeadFit, fits_at_once
from tailshift.training.loop import Trainer, WeightAverage
from tailshift.training.step import DividedStep

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def build_trainer(
    config: RunConfig,
    data: LongTailedData,
    model: Classifier,
    fabric: "Fabric",
    stage_number: int = 0,
) -> Trainer:
    """Return the trainer of a stage, at its first step."""
    stage = config.method.stages()[stage_number]
    distributed.synchronise_batch_norm(
        model, config, len(data.train), fabric.world_size
    )
    loader = build_loader(config, data, stage, fabric)
    loss = build_loss(config, data.class_counts, stage)
    return assemble_trainer(config, model, loss, loader, fabric, stage_number)


def assemble_trainer(
    config: RunConfig,
    model: Classifier,
    loss: nn.Module,
    loader: Batches,
    fabric: "Fabric",
    stage_number: int = 0,
) -> Trainer:
    """Return the trainer of a stage for given loss and batches, at its first step."""
    stages = config.method.stages()
    stage = stages[stage_number]
    begun = stages[config.given_stages : stage_number]
    frozen = freeze(model, _frozen_parts(config, stage), stage.fixed)
    if _has_adapters(config, stage):
        train_adapters(model)
    epochs = config.stage_epochs(stage)
    loss = loss.to(fabric.device)
    has_plain_features = config.model.adapter == "none"
    is_whole = (
        epochs > 0
        and config.optim.name == "lbfgs"
        and has_plain_features
        and fits_at_once(model.head, loss, loader)
    )
    wrapped: nn.Module = model.to(fabric.device)
    optimizer: Any = None
    average = None
    if epochs and not is_whole:
        wrapped = fabric.setup_module(model)  # it may shard the weights
        optimizer = fabric.setup_optimizers(build_optimizer(config, model, stage))
        if config.train.ema is not None:
            average = WeightAverage(model, config.train.ema)
    trainer = Trainer(
        fabric,
        wrapped,
        loss,
        optimizer,
        build_schedule(
            stage.schedule or config.optim.schedule,
            Course(
                epochs=max(epochs, 1),
                steps_per_epoch=len(loader),
                warmup_epochs=config.optim.warmup_epochs if stage_number == 0 else 0,
                warmup_start=config.optim.warmup_start,
                milestones=config.optim.milestones,
                decay=config.optim.decay,
            ),
        ),
        loader,
        epochs,
        frozen=frozen,
        epochs_before=sum(config.stage_epochs(stage) for stage in begun),
        divided=divided_step(config, wrapped, loss, fabric, stage),
        average=average,
        clip_norm=config.optim.clip_norm,
        position=Position(stage=stage_number),
    )
    if not (is_whole and isinstance(loader, FeatureLoader)):
        return trainer
    decay = config.optim.weight_decay
    counts = torch.bincount(loader.plan.labels, minlength=model.head.num_classes)
    sampled = config.sampled_counts(counts, stage)
    return HeadFit.of(
        trainer,
        model.head,
        decay=None if decay == "auto" else decay,
        prior=config.method.logit_prior(sampled),
    )


def _frozen_parts(config: RunConfig, stage: Stage) -> tuple[str, ...]:
    """Return the parts of the network that a stage does not train."""
    is_frozen = config.model.frozen or _has_adapters(config, stage)
    own = ("backbone",) if is_frozen else ()
    return tuple(dict.fromkeys((*own, *stage.frozen)))


def _has_adapters(config: RunConfig, stage: Stage) -> bool:
    """Return whether a stage trains adapters instead of the network."""
    return config.model.adapter != "none" and not stage.frozen


def divided_step(
    config: RunConfig, model: nn.Module, loss: nn.Module, fabric: "Fabric", stage: Stage
) -> DividedStep | None:
    """Return the step for several processes, accumulation or mixup; None without."""
    train, num_parts = config.train, len(config.samplers(stage))
    mixup = train.mixup if stage.mixup is None else stage.mixup
    if fabric.world_size == 1 and train.accumulate == 1 and mixup == 0:
        return None
    return DividedStep(
        fabric,
        model,
        loss,
        distributed.build_processes(config, fabric, num_parts),
        accumulate=train.accumulate,
        is_exact=train.exact_accumulation,
        num_parts=num_parts,
        mixup=mixup,
        seed=config.seed,
    )


def build_loss(config: RunConfig, class_counts: Tensor, stage: Stage) -> nn.Module:
    """Return the loss of a stage, with label smoothing if configured.

    Args:
        config: Configuration of the run.
        class_counts: Training images of each class, shape (C,).
        stage: Stage of the method.
    """
    loss = stage.loss(config.sampled_counts(class_counts, stage))
    if stage.label_smoothing is not None:
        return stage.label_smoothing(loss, class_counts)
    if config.train.label_smoothing == "label_aware":
        return LabelAwareSmoothing(loss, class_counts)
    return loss


_OTHER_SEED = 1_000_003
"""Difference between the seeds of a stage's samplers."""


def build_loader(
    config: RunConfig, data: LongTailedData, stage: Stage, fabric: "Fabric"
) -> Batches:
    """Return the training batches of a stage; several samplers give stacked batches."""
    train = config.train
    loaders = [
        data.train.loader(
            batch_size=train.batch_size,
            training=True,
            seed=(config.seed + _OTHER_SEED * number) % 2**32,
            sampler=sampler,
            num_epochs=max(config.stage_epochs(stage), 1),
            drop_last=train.drop_last,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            num_workers=train.num_workers,
        )
        for number, sampler in enumerate(config.samplers(stage))
    ]
    return loaders[0] if len(loaders) == 1 else StackedLoader(loaders)


def build_optimizer(config: RunConfig, model: Classifier, stage: Stage) -> Optimizer:
    """Return the optimiser of a stage, with a learning rate for each part."""
    optim = config.optim
    lr = stage.lr or optim.lr
    recipe_share = (optim.backbone_lr or optim.lr) / optim.lr
    decay = _LOOP_DECAY if optim.weight_decay == "auto" else optim.weight_decay
    rates = (
        *stage.own_groups,
        OwnGroup("backbone", stage.backbone_lr or lr * recipe_share),
        OwnGroup("head", lr),
    )
    is_adamw, is_layered = optim.name == "adamw", optim.layer_decay < 1
    layers = layer_rates(model, optim.layer_decay) if is_adamw or is_layered else {}
    members: dict[tuple[OwnGroup, LayerRate], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = next(group for group in rates if group.holds(name))
            rate = layers.get(id(parameter), LayerRate(1.0, parameter.ndim > 1))
            rate = LayerRate(rate.scale, group.decays and (rate.decays or not is_adamw))
            members.setdefault((group, rate), []).append(parameter)
    order = (*rates[-2:], *rates[:-2])
    groups = [
        {
            "params": parameters,
            "highest_lr": group.lr * rate.scale,
            "weight_decay": decay if rate.decays else 0.0,
        }
        for (group, rate), parameters in sorted(
            members.items(), key=lambda member: order.index(member[0][0])
        )
    ]
    if is_adamw:
        return AdamW(groups, lr=lr, weight_decay=decay)
    return SGD(
        groups,
        lr=lr,
        momentum=optim.momentum,
        nesterov=optim.nesterov,
        weight_decay=decay,
    )


_LOOP_DECAY = 5e-4
"""Weight decay ``"auto"`` for a stage that the training loop trains."""
