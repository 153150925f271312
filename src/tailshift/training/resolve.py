"""Resolve a run: complete its configuration, load its data, build its network."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tailshift.config import ModelConfig, RunConfig
from tailshift.data import FeatureSplit, LongTailedData
from tailshift.data.own_images import hold_out
from tailshift.models import AUTO, AdaptedBackbone, Backbone, Classifier
from tailshift.models.pretrained import pixel_statistics
from tailshift.models.timm_backbone import PREFIX as TIMM
from tailshift.runs.files import CHECKPOINT, CONFIG, read_config
from tailshift.runs.network import build_network, use_channels_last
from tailshift.training import distributed, extraction
from tailshift.training.build import build_loader, build_loss
from tailshift.training.cross_fit import with_validation_in_training
from tailshift.training.extraction_progress import extraction_progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Resolved:
    """A run ready to be trained: every choice is made and checked."""

    directory: Path
    config: RunConfig
    data: LongTailedData
    fabric: "Fabric"
    model: Classifier
    """The initial network, unless a checkpoint or another run provides weights."""


def resolve(
    config: RunConfig,
    directory: Path,
    *,
    data: LongTailedData | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    is_verbose: bool = False,
) -> Resolved:
    """Resolve what a run trains; reject what it could not train.

    Args:
        config: Configuration as given.
        directory: Run directory.
        data: Splits to use instead of those that ``config`` names.
        data_root: Folder of the data, if it is read from disk.
        resume: Whether to resume a run in the directory.
        is_verbose: Whether to show the progress of feature extraction.
    """
    asked = _with_precision(config, directory, resume=resume)
    asked = _with_network(asked, directory, resume=resume)
    fabric = distributed.build_fabric(asked)
    torch.manual_seed(asked.seed)
    if data is None:
        data = _load_together(asked, data_root, fabric)
    check_splits(data)
    config = asked.for_images(data.image_size)
    data = _prepared(config, data, fabric, is_verbose=is_verbose)
    _check_validation(config, data)
    is_filled = resume and _has_checkpoint(directory)
    model = new_model(config, data, is_filled=is_filled)
    if isinstance(data.train, FeatureSplit) and not is_filled:
        extraction.check_bank(data.train, config.model, _plain(model.backbone))
    _check_stages(config, data, fabric)
    return Resolved(directory, config, data, fabric, model)


def _load_together(
    config: RunConfig, data_root: str | Path | None, fabric: "Fabric"
) -> LongTailedData:
    """Load the data in all processes, in the first one first."""
    root = Path(data_root) if data_root is not None else None
    with fabric.rank_zero_first():  # it may download the data
        return config.data.load(root=root, seed=config.seed)


def _prepared(
    config: RunConfig, data: LongTailedData, fabric: "Fabric", *, is_verbose: bool
) -> LongTailedData:
    """Normalise the data, extract features and hold out images, as needed."""
    data = as_weights_expect(config, data)
    if config.model.frozen and not isinstance(data.train, FeatureSplit):
        with fabric.rank_zero_first():
            data = banked(data, config.model, is_verbose=is_verbose)
    data = _held_out(config, data) if config.method.needs_validation else data
    return with_validation_in_training(config, data)


def _with_precision(config: RunConfig, directory: Path, *, resume: bool) -> RunConfig:
    """Replace precision ``auto`` by the resumed run's or this machine's precision."""
    if resume and (directory / CONFIG).is_file():
        config = config.in_precision(read_config(directory).train.precision)
    machine = distributed.machine_precision(config.train.accelerator)
    return config.in_precision(machine)


def _with_network(config: RunConfig, directory: Path, *, resume: bool) -> RunConfig:
    """Take settings of the network that are not given from the run to start from.

    A resumed run has recorded them.
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
    """Return the data normalised as the pretrained weights expect.

    Images read from files are also resized to the network's input resolution. The data
    are unchanged if the network is not pretrained, is not from timm or reads grey
    images. Features already come from images normalised in this way.

    Args:
        config: Configuration with the network and its weights.
        data: Data normalised by their own statistics.
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


def banked(
    data: LongTailedData, model: ModelConfig, *, is_verbose: bool
) -> LongTailedData:
    """Return the features of the images, from the feature cache or newly extracted."""
    with extraction_progress(is_verbose=is_verbose) as progress:
        return extraction.cached_bank(data, model, progress).data()


def check_splits(data: LongTailedData) -> None:
    """Reject an empty split, a class without training images, and equal class names."""
    name, occurrences = Counter(data.class_names).most_common(1)[0]
    if occurrences > 1:
        raise ValueError(
            f"the class names of {data.name} must differ, but {name!r} names "
            f"{occurrences} classes. Rename or merge them."
        )
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
            "has none: no method can learn it. Leave the class out."
        )


def _check_validation(config: RunConfig, data: LongTailedData) -> None:
    """Reject settings that need validation images if there are none."""
    if data.val is not None and len(data.val):
        return
    for setting, default in (("keep", "last"), ("patience", None)):
        value = getattr(config.train, setting)
        if value != default:
            raise ValueError(
                f"`train.{setting}` needs validation images, but is {value!r} and "
                f"{data.name} has none. Drop it, or hold images out with "
                "training.with_validation (data.val_fraction for image folders and "
                "lists)."
            )


def _held_out(config: RunConfig, data: LongTailedData) -> LongTailedData:
    """Hold out validation images, unless there are some or another run saw them all."""
    if (data.val is not None and len(data.val)) or config.train.start_from:
        return data
    no_val = dataclasses.replace(data, val=None)
    return with_validation(no_val, seed=config.seed)


HELD_OUT = 0.1
"""Fraction of each class that is held out if there is no validation split."""


def with_validation(
    data: LongTailedData, fraction: float = HELD_OUT, *, seed: int = 0
) -> LongTailedData:
    """Hold out a fraction of the training images as the validation split.

    Each class gives the fraction, rounded, but at least one image and never its last
    one. Both splits therefore have all classes, except those with a single image, which
    stays in training. The choice depends on the images, not on their order. The test
    split does not change.

    Args:
        data: Data without a validation split.
        fraction: Fraction of each class, in (0, 1).
        seed: Seed of the choice of images.

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
    """Return the initial classifier.

    Args:
        config: Configuration with the network and its weights.
        data: Data with the classes and the image size.
        is_filled: Whether a checkpoint provides the weights, so none are downloaded.
    """
    model = build_network(
        config,
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        image_size=data.image_size,
        is_filled=is_filled or bool(config.train.start_from),
    )
    use_channels_last(model, config)
    return model


def _plain(backbone: Backbone) -> Backbone:
    """Return the backbone without its adapter, which gives the cached features."""
    return backbone.backbone if isinstance(backbone, AdaptedBackbone) else backbone


def _has_checkpoint(directory: Path) -> bool:
    """Return whether a folder has a run that can be resumed from a checkpoint."""
    return all((directory / name).is_file() for name in (CONFIG, CHECKPOINT))


def _check_stages(config: RunConfig, data: LongTailedData, fabric: "Fabric") -> None:
    """Build each stage's batches and loss once, so that errors come early."""
    for stage in config.method.stages():
        build_loader(config, data, stage, fabric)
        build_loss(config, data.class_counts, stage)
