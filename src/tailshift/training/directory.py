"""The folder that a run is written to: refused, resumed, begun; nothing is lost."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailshift.config import RunConfig
from tailshift.training.environment import describe_environment
from tailshift.training.run import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    FACTS,
    METRICS,
    PREDICTIONS,
    TENSORBOARD,
    WEIGHTS,
    read_config,
    write_json,
)


def default_directory(config: RunConfig) -> Path:
    """Return ``runs/RECIPE/METHOD-seedN``."""
    return Path("runs") / config.recipe / f"{config.method_name}-seed{config.seed}"


def check_directory(
    directory: Path, config: RunConfig, *, resume: bool, force: bool
) -> None:
    """Refuse a folder that a run would overwrite; nothing is changed yet."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(
            f"`output` must be a folder, but {directory} is a file. "
            "Name another folder (--output)."
        )
    if not directory.exists() or not any(directory.iterdir()):
        return
    if resume and (directory / CONFIG).is_file():
        check_same_config(directory, config)
        return
    if not is_run_directory(directory):
        raise FileExistsError(
            f"`output` {directory} exists and is not a run directory, so that nothing "
            "in it is replaced. Name another folder (--output)."
        )
    if not force:
        raise FileExistsError(
            f"`output` {directory} exists. Go on with it (--resume), replace it "
            "(--force) or name another folder (--output)."
        )


def is_run_directory(directory: Path) -> bool:
    """Say whether a folder was made by `train`, by its configuration."""
    try:
        read_config(directory)
    except (OSError, ValueError):
        return False
    return True


def begin_directory(directory: Path, config: RunConfig) -> None:
    """Make a run directory, without what an earlier run left in it."""
    for folder in (PREDICTIONS, TENSORBOARD):
        shutil.rmtree(directory / folder, ignore_errors=True)
    for name in (FACTS, WEIGHTS, CHECKPOINT, METRICS, ENVIRONMENT):
        (directory / name).unlink(missing_ok=True)
    write_json(directory / CONFIG, config.to_mapping())
    write_json(directory / ENVIRONMENT, describe_environment())


def check_same_config(directory: Path, config: RunConfig) -> None:
    """Refuse to go on with a run under other settings than it began with."""
    began = _flat(read_config(directory).to_mapping())
    asked = _flat(config.to_mapping())
    for key in asked:
        if began.get(key) != asked[key]:
            raise ValueError(
                f"{directory} was begun with {key} = {began.get(key)!r}, but --resume "
                f"asks for {asked[key]!r}. Resume with the settings it was begun with, "
                "or name another folder (--output)."
            )


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested mapping with keys like ``"train.epochs"``."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        below = _flat(value) if isinstance(value, Mapping) else {}
        flat |= {f"{key}.{name}": part for name, part in below.items()} or {key: value}
    return flat
