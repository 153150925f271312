"""Combinations of settings that do not fit together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from tailshift.losses import as_loss
from tailshift.methods import Method, Stage
from tailshift.models import (
    AUTO,
    LinearHead,
)
from tailshift.models.timm_backbone import PREFIX as TIMM

if TYPE_CHECKING:
    from tailshift.config.run_config import RunConfig


def training_misfits(config: "RunConfig") -> Iterator[str]:
    """Yield a sentence for each setting of `train` that the method would ignore."""
    name, train, stages = config.method_name, config.train, config.method.stages()
    if train.sampler != "instance" and all(stage.samplers for stage in stages):
        own = dict.fromkeys(s for stage in stages for s in stage.samplers or ())
        yield (
            f"`train.sampler` must not be set, since {name} has its own "
            f"({', '.join(own)}), but is {train.sampler!r}."
        )
    if train.mixup and all(stage.mixup is not None for stage in stages):
        yield (
            f"`train.mixup` must not be set, since {name} says in which stage images "
            f"are blended, but is {train.mixup:g}. Set `method.mixup` instead."
        )
    if train.exact_accumulation and any(
        len(stage.samplers or ()) > 1 for stage in stages
    ):
        yield (
            f"`train.exact_accumulation` must be false, since {name} reads the batches "
            "of several samplers at once, but is true. Its loss is a mean: the "
            "gradient is exact without."
        )
    for setting, value, default in (
        ("keep", train.keep, "last"),
        ("patience", train.patience, None),
    ):
        if value != default and not config.stage_epochs(stages[-1]):
            yield (
                f"`train.{setting}` must be left out, since the last stage of {name} "
                f"has no epochs to choose from, but is {value!r}."
            )
    two_classes = torch.tensor([2, 1])
    if train.label_smoothing != "none" and not all(
        as_loss(stage.loss(two_classes)).takes_soft_targets for stage in stages
    ):
        yield (
            f"`train.label_smoothing` must be 'none', since the loss of {name} does "
            f"not take soft labels, but is {train.label_smoothing!r}."
        )


def network_misfits(config: "RunConfig") -> Iterator[str]:
    """Yield a sentence for each setting that does not fit the network."""
    name, stages = config.method_name, config.method.stages()
    if config.optim.name == "lbfgs" and not config.model.frozen:
        yield (
            "`optim.name` must be 'sgd' or 'adamw' to train a whole network, but is "
            "'lbfgs'. Set model.frozen=true to train its head alone."
        )
    is_branched = type(config.method).branch is not Method.branch
    is_timm = config.model.name.startswith(TIMM) or (
        config.model.name == AUTO and config.is_thawed  # features are of timm's
    )
    if config.optim.layer_decay < 1 and (
        not is_timm or config.model.frozen or is_branched
    ):
        yield (
            "`optim.layer_decay` must be 1, since it is for a network of timm that is "
            f"trained as a whole, but is {config.optim.layer_decay:g}. Name one with "
            "model.name=timm:NAME, and leave model.frozen out."
        )
    if config.model.frozen and is_branched:
        yield (
            f"`model.frozen` must be false, since {name} trains branches of the "
            "network, but is true."
        )
    if config.model.frozen and config.is_thawed:
        yield (
            f"`model.frozen` must be false to start from another run (--from), since "
            f"{name} has one stage, but is true. Leave one of the two out."
        )
    if config.model.frozen and config.model.adapter not in ("none", "residual"):
        yield (
            "`model.adapter` must be 'none' or 'residual' with model.frozen, whose "
            f"features are computed once, but is {config.model.adapter!r}. Leave one "
            "of the two out."
        )
    if config.model.adapter == "residual" and not config.model.frozen:
        yield (
            "`model.adapter` must be 'none', 'adaptformer' or 'lora' unless the "
            "backbone is frozen, but is 'residual'. Set model.frozen=true."
        )
    if config.model.frozen and config.eval.views != "one":
        yield (
            "`eval.views` must be 'one' with model.frozen, whose features are computed "
            f"once, but is {config.eval.views!r}. `tailshift predict --views` has them."
        )
    if config.model.head == "cosine" and not all(map(_is_linear, stages)):
        yield (
            f"`model.head` must be 'method', since {name} has a head of its own, but "
            "is 'cosine'."
        )


def _is_linear(stage: Stage) -> bool:
    with torch.random.fork_rng():  # a head draws its weights
        return type(stage.head(1, 2)) is LinearHead
