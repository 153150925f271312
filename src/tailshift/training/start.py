"""Start a run from the weights of another run."""

from pathlib import Path

import torch

from tailshift.config import RunConfig
from tailshift.data import LongTailedData
from tailshift.models import Classifier, FrozenBackbone
from tailshift.runs.files import WEIGHTS, load_weights
from tailshift.runs.network import thaw, use_channels_last
from tailshift.runs.run import Run, load_run


def start_from(model: Classifier, config: RunConfig, data: LongTailedData) -> None:
    """Load the weights that ``train.start_from`` names into the model.

    Args:
        model: Network of the method's first stage.
        config: Configuration of the new run.
        data: Data of the new run.
    """
    source = Path(config.train.start_from).expanduser()
    if config.is_thawed:
        _start_from_features(model, source, config, data)
        return
    if source.is_dir():
        _check_run(load_run(source), config, data)
        source = source / WEIGHTS
    if not source.is_file():
        raise FileNotFoundError(
            f"`train.start_from` (--from) must be a run or a file of weights, but "
            f"there is no {source}."
        )
    load_weights(source, model)


def _start_from_features(
    model: Classifier, source: Path, config: RunConfig, data: LongTailedData
) -> None:
    """Load the backbone and the fitted head of a run on features into the model.

    Args:
        model: Network of a method with one stage.
        source: Directory of the run on features.
        config: Configuration of the new run.
        data: Data of the new run.
    """
    where = f"`train.start_from` (--from) {source}"
    run = load_run(source) if source.is_dir() else None
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
    use_channels_last(model, config)


def _check_run(run: Run, config: RunConfig, data: LongTailedData) -> None:
    """Reject a run that is not the first stage of the method on this data."""
    where = f"`train.start_from` (--from) {run.directory}"
    if not run.is_finished:
        raise ValueError(f"{where} must be a finished run, but is {run.facts.state}.")
    if run.config.model.name != config.model.name:
        raise ValueError(
            f"{where} must have the model {config.model.name}, but has "
            f"{run.config.model.name}."
        )
    counts = [data.class_counts]
    if run.config.train.cross_fit and data.val is not None:
        val_counts = torch.bincount(data.val.labels, minlength=data.num_classes)
        counts.append(data.class_counts + val_counts)  # its head trained on both
    if not any(torch.equal(run.source_counts, c) for c in counts):
        raise ValueError(
            f"{where} must be trained on the same images, but its class counts differ "
            f"from those of {data.name}."
        )
