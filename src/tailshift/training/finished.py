"""Finished runs below a folder, and which recipe each of them is a run of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailshift.config import RunConfig
from tailshift.training.run import FACTS, Run, load

MACHINE_SETTINGS = frozenset(
    {
        "accelerator",
        "channels_last",
        "checkpoint_every",
        "checkpoint_minutes",
        "checkpoint_steps",
        "detect_anomaly",
        "devices",
        "num_nodes",
        "num_workers",
        "precision",
        "shard",
        "start_from",
        "tensorboard",
    }
)
"""Settings of ``train`` that say how a run is done, not what comes out."""


def find_runs(
    folder: Path, announce: Callable[[str], None] = lambda text: None
) -> list[Run]:
    """Return the finished runs below a folder, the latest last."""
    runs = []
    for path in sorted(folder.rglob(FACTS), key=lambda path: path.stat().st_mtime):
        try:
            run = load(path.parent)
        except (OSError, ValueError) as error:
            announce(f"left out: {error}")
            continue
        if run.is_finished:
            runs.append(run)
    return runs


def is_run_of(config: RunConfig, recipe: RunConfig) -> bool:
    """Say whether a run was made by a recipe: all that decides its outcome is equal."""
    return _outcome(config) == _outcome(recipe)


def _outcome(config: RunConfig) -> dict[str, Any]:
    """Return the settings that decide what comes out, but for the seed."""
    settings = config.to_mapping()
    train = settings["train"].items()
    kept = {key: value for key, value in train if key not in MACHINE_SETTINGS}
    settings["train"] = kept
    return {key: settings[key] for key in settings if key not in ("seed", "eval")}
