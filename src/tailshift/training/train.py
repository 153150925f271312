"""From a configuration to a finished run directory."""

import dataclasses
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tailshift.config import ModelConfig, RunConfig
from tailshift.data import Batches, FeatureSplit, LongTailedData, StackedLoader
from tailshift.data.features import FeatureLoader
from tailshift.data.own_images import hold_out
from tailshift.losses import LabelAwareSmoothing
from tailshift.methods import Stage
from tailshift.methods.method import OwnGroup
from tailshift.methods.schedules import Course, build_schedule
from tailshift.models import (
    AUTO,
    AdaptedBackbone,
    Backbone,
    Classifier,
    FrozenBackbone,
    layer_rates,
)
from tailshift.models.pretrained import pixel_statistics
from tailshift.models.timm_backbone import PREFIX as TIMM
from tailshift.models.timm_backbone import LayerRate
from tailshift.runs.checkpoint import Position, read_position
from tailshift.runs.directory import begin_directory, check_directory, default_directory
from tailshift.runs.network import (
    build_network,
    freeze,
    place_head,
    thaw,
    train_adapters,
)
from tailshift.runs.run import (
    CHECKPOINT,
    CONFIG,
    WEIGHTS,
    Run,
    load,
    load_weights,
    read_config,
)
from tailshift.training import distributed, extraction
from tailshift.training.head_fit import HeadFit, fits_at_once
from tailshift.training.inference import SplitFeatures
from tailshift.training.interrupt import Preempted, StopRequest, stop_on_interrupt
from tailshift.training.loop import Trainer, WeightAverage, detecting_anomalies
from tailshift.training.progress import training_progress
from tailshift.training.recorder import Recorder
from tailshift.training.step import DividedStep

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    config: RunConfig,
    *,
    output: str | Path | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    data: LongTailedData | None = None,
    verbose: bool = False,
) -> Run:
    """Train, evaluate and return the run.

    Ctrl-C (once) ends the step under way, then saves a run that can be used and
    resumed; in the very last step it saves a finished run, then raises
    KeyboardInterrupt, so that a loop over seeds ends. SIGTERM saves without an
    evaluation, and ends the process with exit code 75.

    Args:
        config: What to train; `tailshift.load_recipe` makes one.
        output: The run directory, by default ``runs/RECIPE/METHOD-seedN``.
        data_root: The folder that holds the data, if it is read from disk.
        resume: Resume from the last checkpoint in ``output``.
        force: Replace a run that is in ``output``.
        data: Take these splits instead of loading those that ``config`` names.
        verbose: Print on standard error what is trained, on what, the expected time
            and, where that is no terminal, a line an epoch.
    """
    directory = Path(output) if output is not None else default_directory(config)
    check_directory(directory, config, resume=resume, force=force)
    config = _with_precision(config, directory, resume=resume)
    config = _with_network(config, directory, resume=resume)
    fabric = distributed.build_fabric(config)
    with distributed.telling_lost_processes():
        torch.manual_seed(config.seed)
        if data is None:
            root = Path(data_root) if data_root is not None else None
            with fabric.rank_zero_first():  # it may have to be fetched
                data = config.data.load(root=root, seed=config.seed)
        check_splits(data)
        config = config.for_images(data.image_size)
        data = as_weights_expect(config, data)
        if config.model.frozen and not isinstance(data.train, FeatureSplit):
            with fabric.rank_zero_first():
                data = banked(data, config.model, is_verbose=verbose)
        if config.method.needs_validation:
            data = _held_out(config, data)
        check_validation(config, data)
        is_filled = resume and _has_checkpoint(directory)
        model = new_model(config, data, is_filled=is_filled)
        if isinstance(data.train, FeatureSplit) and not is_filled:
            extraction.check_bank(data.train, config.model, _plain(model.backbone))
        recorder = Recorder(directory, config, data, model, fabric, is_verbose=verbose)
        check_stages(config, data, fabric)
        with distributed.open_directory_together(
            fabric, directory, config, resume=resume, force=force
        ) as is_resumed:
            write_run(recorder, is_resumed=is_resumed)
    return load(directory)


def _plain(backbone: Backbone) -> Backbone:
    """Return what gives the features of a bank: the backbone without its adapter."""
    return backbone.backbone if isinstance(backbone, AdaptedBackbone) else backbone


def _with_precision(config: RunConfig, directory: Path, *, resume: bool) -> RunConfig:
    """Return it with the resumed run's or this machine's precision, if ``auto``."""
    if resume and (directory / CONFIG).is_file():
        config = config.in_precision(read_config(directory).train.precision)
    machine = distributed.machine_precision(config.train.accelerator)
    return config.in_precision(machine)


def _with_network(config: RunConfig, directory: Path, *, resume: bool) -> RunConfig:
    """Return it with the network of the run that it starts from, as far as it is open.

    A resumed run has recorded it.
    """
    is_begun = resume and (directory / CONFIG).is_file()
    source = directory if is_begun else Path(config.train.start_from).expanduser()
    if not config.is_thawed or not (source / CONFIG).is_file():
        return config
    model, theirs = config.model, read_config(source).model
    name = theirs.name if model.name == AUTO else model.name
    size = model.image_size or theirs.image_size
    model = model.model_copy(update={"name": name, "image_size": size})
    return config.model_copy(update={"model": model})


def as_weights_expect(config: RunConfig, data: LongTailedData) -> LongTailedData:
    """Return the data with pixels normalised as the published weights expect.

    Images that are read from files get the size that the network sees at once.

    It is as it was for a network that starts from random weights, that is not timm's,
    or that reads grey images; features are of images normalised so already.

    Args:
        config: Names the network and its weights.
        data: Normalised by its own statistics.
    """
    model = config.model
    has_weights = model.pretrained or model.weights or config.is_thawed
    is_own = not model.name.startswith(TIMM) or data.in_channels != 3
    if model.frozen or not has_weights or is_own:
        return data
    if model.image_size:
        return extraction.prepared(data, model)
    mean, std, _ = pixel_statistics(model.name.removeprefix(TIMM))
    return data.normalised(mean, std)


def write_run(recorder: Recorder, *, is_resumed: bool) -> None:
    """Train from where the run directory stands, evaluate, and save it all.

    Args:
        recorder: Has the model and the data; this process holds its directory.
        is_resumed: Whether to resume a run, or to begin one.
    """
    fabric, first = recorder.fabric, first_stage(recorder, is_resumed=is_resumed)
    fabric.barrier()
    if not is_resumed and fabric.is_global_zero:
        begin_directory(recorder.directory, recorder.config)
    fabric.barrier()
    recorder.print_plan(is_filled=is_resumed and recorder.checkpoint.is_file())
    with stop_on_interrupt() as stop, recorder.tracking():
        finished = train_stages(recorder, stop, first, is_resumed=is_resumed)
    recorder.save_checkpoint()
    if fabric.broadcast(stop.is_preemption):
        recorder.write_facts("interrupted")
        fabric.barrier()  # whoever ends first may take the others with it
        raise Preempted(recorder.directory)
    recorder.save_results(finished)
    if fabric.broadcast(stop.is_set) and finished:  # it must not start another run
        raise KeyboardInterrupt(f"interrupted; {recorder.directory} is finished")


def train_stages(
    recorder: Recorder, stop: StopRequest, first: int, *, is_resumed: bool
) -> bool:
    """Train one stage after the other; return False if a stop was asked for before.

    Args:
        recorder: Has the model and the data, and records all that happens.
        stop: Ends training after the step under way.
        first: The stage to begin with.
        is_resumed: Whether to begin where the checkpoint is.
    """
    config, data, model = recorder.config, recorder.data, recorder.model
    features = SplitFeatures(recorder.fabric, model, data, config)
    stages = config.method.stages()
    is_restored = is_resumed and recorder.checkpoint.is_file()
    for number, stage in enumerate(stages[first:], first):
        if number > 0:
            previous = model.head
            place_head(model, config, number)
            if not (is_restored and number == first):
                model.head.begin(previous, features)
        trainer = build_trainer(config, data, model, recorder.fabric, number)
        recorder.follow(trainer, is_resumed=is_resumed and number == first)
        title = f"{config.recipe} · {config.method.title} · seed {config.seed}"
        if len(stages) > 1:
            title += f" · {stage.title}"
        with (
            closing(trainer.loader),
            training_progress(
                title,
                trainer.num_steps,
                done=trainer.step,
                is_verbose=recorder.is_verbose,
            ) as progress,
            anomalies(recorder),
        ):
            if not trainer.fit(
                on_epoch=partial(recorder.record_epoch, progress=progress),
                on_step=recorder.after_step,
                stop=stop,
                log=progress.step,
            ):
                return False
        recorder.take_average()  # the next stage begins with it
    return True


def anomalies(recorder: Recorder) -> AbstractContextManager[None]:
    """Return what looks for NaN in the stage under way, if it is asked for."""
    if not recorder.config.train.detect_anomaly:
        return nullcontext()
    return detecting_anomalies(recorder.model, lambda: recorder.trainer.place)


def check_splits(data: LongTailedData) -> None:
    """Refuse data that nothing can be learnt from or shown on."""
    for name, split in (("train", data.train), ("test", data.test)):
        if not len(split):
            raise ValueError(
                f"the {name} split of {data.name} must not be empty, but has no image."
            )
    empty = (data.class_counts == 0).nonzero().flatten().tolist()
    if empty:
        names = ", ".join(data.class_names[c] for c in empty[:5])
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise ValueError(
            f"every class of {data.name} must have a training image, but {names}{more} "
            "has none: no method can tell what it looks like. Leave the class out."
        )


def check_validation(config: RunConfig, data: LongTailedData) -> None:
    """Refuse to choose among epochs without images to choose by."""
    if data.val is not None and len(data.val):
        return
    for setting, default in (("keep", "last"), ("patience", None)):
        value = getattr(config.train, setting)
        if value != default:
            raise ValueError(
                f"`train.{setting}` needs validation images, but is {value!r} and "
                f"{data.name} has none. Leave it out, or hold some out: "
                "training.train.with_validation does, and data.val_fraction for image "
                "folders and lists."
            )


def _held_out(config: RunConfig, data: LongTailedData) -> LongTailedData:
    """Return the data with validation images that no stage trains on, if it may be."""
    if (data.val is not None and len(data.val)) or config.train.start_from:
        return data
    no_val = dataclasses.replace(data, val=None)
    return with_validation(no_val, seed=config.seed)


HELD_OUT = 0.1
"""Share of each class that is held out if there is no validation split."""


def with_validation(
    data: LongTailedData, fraction: float = HELD_OUT, *, seed: int = 0
) -> LongTailedData:
    """Return the data with a share of its training images as the validation split.

    Each class gives the share, rounded, but at least one image and never its last:
    both splits have all classes, but for those with a single image, which stays in
    training. The choice depends on the images, not on their order. The test split is
    left as it is.

    Args:
        data: Data without a validation split.
        fraction: Share of each class, in (0, 1).
        seed: Another seed holds out other images.

    Example:
        >>> from tailshift.data import DigitsLT
        >>> data = dataclasses.replace(DigitsLT().load(root=None, seed=0), val=None)
        >>> with_validation(data).class_counts
        tensor([90, 58, 37, 24, 15, 10,  6,  3,  2,  1])
    """
    if data.val is not None:
        raise ValueError(
            f"`data` must have no validation split, but {data.name} has one of "
            f"{len(data.val)} images."
        )
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction` must be in (0, 1), but is {fraction:g}.")
    split = data.train
    chosen = hold_out(split.keys(), split.labels, {"val": fraction}, seed=seed)
    train, val = (split.subset(torch.from_numpy(chosen[k])) for k in ("train", "val"))
    return dataclasses.replace(
        data,
        train=train,
        val=val,
        fingerprint=train.fingerprint(),
        full_counts=data.group_counts,
    )


def new_model(
    config: RunConfig, data: LongTailedData, *, is_filled: bool = False
) -> Classifier:
    """Return the classifier that training starts from.

    Args:
        config: Names the network and its weights.
        data: Gives classes and image size.
        is_filled: Whether a checkpoint will fill it, so that no weights are fetched.
    """
    model = build_network(
        config,
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        image_size=data.image_size,
        is_filled=is_filled or bool(config.train.start_from),
    )
    _lay_out(model, config)
    return model


def _lay_out(model: Classifier, config: RunConfig) -> None:
    """Keep a pixel's channels side by side, if it is asked for."""
    if config.train.channels_last and not config.train.shard:
        model.to(memory_format=torch.channels_last)


def check_stages(config: RunConfig, data: LongTailedData, fabric: "Fabric") -> None:
    """Refuse what a stage could not train on, before hours go into another."""
    for stage in config.method.stages():
        build_loader(config, data, stage, fabric)
        build_loss(config, data.class_counts, stage)


def _has_checkpoint(directory: Path) -> bool:
    """Say whether a folder has a run that can be resumed from a checkpoint."""
    return all((directory / name).is_file() for name in (CONFIG, CHECKPOINT))


def first_stage(recorder: Recorder, *, is_resumed: bool) -> int:
    """Return the stage to begin with: the checkpoint's, or the first not given.

    One that is given (``train.start_from``) is filled into the model.
    """
    config = recorder.config
    if is_resumed and recorder.checkpoint.is_file():
        return read_position(recorder.checkpoint).stage
    if config.train.start_from:
        start_from(recorder.model, config, recorder.data)
        return config.given_stages
    return 0


def start_from(model: Classifier, config: RunConfig, data: LongTailedData) -> None:
    """Fill the model with the weights that ``train.start_from`` names.

    Args:
        model: The network of the method's first stage.
        config: Configuration of the run that begins.
        data: Data of that run.
    """
    source = Path(config.train.start_from).expanduser()
    if config.is_thawed:
        start_from_features(model, source, config, data)
        return
    if source.is_dir():
        _check_run(load(source), config, data)
        source = source / WEIGHTS
    if not source.is_file():
        raise FileNotFoundError(
            f"`train.start_from` (--from) must be a run or a file of weights, but "
            f"there is no {source}."
        )
    load_weights(source, model)


def start_from_features(
    model: Classifier, source: Path, config: RunConfig, data: LongTailedData
) -> None:
    """Fill the model with the backbone and the fitted head of a run on features.

    Args:
        model: Network of a method of one stage.
        source: Directory of the run.
        config: Configuration of the run that begins.
        data: Data of that run.
    """
    where = f"`train.start_from` (--from) {source}"
    run = load(source) if source.is_dir() else None
    if (
        run is None
        or not run.config.model.frozen
        or run.config.model.name == "features"
    ):
        raise ValueError(
            f"{where} must be a run on features (model.frozen=true) with its network, "
            f"since {config.method_name} has one stage, but is not. Drop it, or name "
            "such a run."
        )
    _check_run(run, config, data)
    if run.config.model.image_size != config.model.image_size:
        raise ValueError(
            f"{where} must have the model.image_size {config.model.image_size}, but "
            f"has {run.config.model.image_size}. Leave it out."
        )
    if run.config.model.adapter != "none":
        raise ValueError(
            f"{where} must have no adapter, since the whole network starts from the "
            f"plain features, but has model.adapter={run.config.model.adapter}. Train "
            "it with model.adapter=none."
        )
    trained = run.model
    if type(trained.head) is not type(model.head):
        raise ValueError(
            f"{where} must have a {type(model.head).__name__}, but has a "
            f"{type(trained.head).__name__}. Train it with the same model.head."
        )
    assert isinstance(trained.backbone, FrozenBackbone)
    model.head.load_state_dict(trained.head.state_dict())
    model.backbone = thaw(trained.backbone, config, data.num_classes)
    _lay_out(model, config)


def _check_run(run: Run, config: RunConfig, data: LongTailedData) -> None:
    """Refuse a run that is not the first stage of the method on this data."""
    where = f"`train.start_from` (--from) {run.directory}"
    if not run.is_finished:
        raise ValueError(f"{where} must be a finished run, but is {run.facts.state}.")
    if run.config.model.name != config.model.name:
        raise ValueError(
            f"{where} must have the model {config.model.name}, but has "
            f"{run.config.model.name}."
        )
    if run.source_counts.tolist() != data.class_counts.tolist():
        raise ValueError(
            f"{where} must be trained on the same images, but its class counts differ "
            f"from those of {data.name}."
        )


def build_trainer(
    config: RunConfig,
    data: LongTailedData,
    model: Classifier,
    fabric: "Fabric",
    stage_number: int = 0,
) -> Trainer:
    """Return the trainer of a stage on its data, at its first step."""
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
    """Return the trainer of a stage for a loss and for batches, at its first step."""
    stages = config.method.stages()
    stage = stages[stage_number]
    begun = stages[config.given_stages : stage_number]
    frozen = freeze(model, _frozen_parts(config, stage), stage.fixed)
    if _has_adapters(config, stage):
        train_adapters(model)
    epochs = config.stage_epochs(stage)
    loss = loss.to(fabric.device)
    has_plain_features = config.model.adapter == "none"
    is_smooth = has_plain_features and fits_at_once(model.head, loss, loader)
    is_whole = epochs > 0 and config.optim.name == "lbfgs" and is_smooth
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
        prior=config.method.trained_prior(sampled),
    )


def _frozen_parts(config: RunConfig, stage: Stage) -> tuple[str, ...]:
    """Return the parts of the network that a stage leaves as they are."""
    is_frozen = config.model.frozen or _has_adapters(config, stage)
    own = ("backbone",) if is_frozen else ()
    return tuple(dict.fromkeys((*own, *stage.frozen)))


def _has_adapters(config: RunConfig, stage: Stage) -> bool:
    """Return whether a stage trains adapters in place of the network."""
    return config.model.adapter != "none" and not stage.frozen


def divided_step(
    config: RunConfig, model: nn.Module, loss: nn.Module, fabric: "Fabric", stage: Stage
) -> DividedStep | None:
    """Return what reads a batch in more than one way; None if one read is all."""
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
    """Return the loss of a stage, under smoothed labels if they are asked for.

    Args:
        config: Configuration of the run.
        class_counts: Training images of each class, shape (C,).
        stage: One of the method's.
    """
    loss = stage.loss(config.sampled_counts(class_counts, stage))
    if stage.label_smoothing is not None:
        return stage.label_smoothing(loss, class_counts)
    if config.train.label_smoothing == "label_aware":
        return LabelAwareSmoothing(loss, class_counts)
    return loss


OTHER_SEED = 1_000_003
"""Between the seeds of a stage's samplers."""


def build_loader(
    config: RunConfig, data: LongTailedData, stage: Stage, fabric: "Fabric"
) -> Batches:
    """Return the training batches of a stage; several samplers give stacked ones."""
    train = config.train
    loaders = [
        data.train.loader(
            batch_size=train.batch_size,
            training=True,
            seed=(config.seed + OTHER_SEED * number) % 2**32,
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
    """Return the optimiser of what a stage trains; parts may have their own rates."""
    optim = config.optim
    lr = stage.lr or optim.lr
    recipe_share = (optim.backbone_lr or optim.lr) / optim.lr
    decay = LOOP_DECAY if optim.weight_decay == "auto" else optim.weight_decay
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


LOOP_DECAY = 5e-4
"""Weight decay of a stage that is not fitted at once, if it is ``"auto"``."""


def banked(
    data: LongTailedData, model: ModelConfig, *, is_verbose: bool
) -> LongTailedData:
    """Return the features of the data's images, computed now or found in the cache."""
    with extraction.extraction_progress(is_verbose=is_verbose) as progress:
        return extraction.cached_bank(data, model, progress).data()
