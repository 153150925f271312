"""The first stage of a method, taken from a finished run or a file of weights."""

from pathlib import Path

from tailshift.config import RunConfig
from tailshift.data import LongTailedData
from tailshift.models import Classifier
from tailshift.training.run import WEIGHTS, Run, load, load_weights


def start_from(model: Classifier, config: RunConfig, data: LongTailedData) -> None:
    """Fill the model with the weights that ``train.start_from`` names.

    Args:
        model: The network of the method's first stage.
        config: Of the run that begins.
        data: Its data.
    """
    if len(config.method.stages()) < 2:
        raise ValueError(
            f"`train.start_from` (--from) is for methods of two stages, but "
            f"{config.method_name} has one. Leave it out."
        )
    source = Path(config.train.start_from).expanduser()
    if source.is_dir():
        _check_run(load(source), config, data)
        source = source / WEIGHTS
    if not source.is_file():
        raise FileNotFoundError(
            f"`train.start_from` (--from) must be a run or a file of weights, but "
            f"there is no {source}."
        )
    load_weights(source, model)


def _check_run(run: Run, config: RunConfig, data: LongTailedData) -> None:
    """Refuse a run that is not the first stage of the method on this data."""
    where = f"`train.start_from` (--from) {run.directory}"
    if not run.is_finished:
        raise ValueError(
            f"{where} must be a finished run, but is {run.facts['state']}."
        )
    if run.config.model.name != config.model.name:
        raise ValueError(
            f"{where} must have the model {config.model.name}, but has "
            f"{run.config.model.name}."
        )
    if run.facts["source_counts"] != data.class_counts.tolist():
        raise ValueError(
            f"{where} must be trained on the same images, but its class counts differ "
            f"from those of {data.name}."
        )
