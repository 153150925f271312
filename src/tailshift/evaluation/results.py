"""Results as data: a CSV with one row for each run and target."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tailshift.config import RunConfig
from tailshift.evaluation.records import evaluate
from tailshift.recipes import load_recipe
from tailshift.runs.index import kept_name
from tailshift.runs.run import Run
from tailshift.storage import atomic_write
from tailshift.targets import PAPER_TARGETS

COLUMNS = (
    "recipe",
    "method",
    "mode",
    "settings",
    "imbalance_ratio",
    "seed",
    "epochs",
    "target",
    "num_samples",
    "raw",
    "compensated",
    "subset_hash",
    "commit",
    "hardware",
    "torch",
    "minutes",
    "command",
)
KEY = ("recipe", "method", "mode", "settings", "seed", "target")
"""What tells two rows apart; a new row replaces the one with the same key."""


def result_rows(
    run: Run, targets: Sequence[str] = PAPER_TARGETS
) -> list[dict[str, str]]:
    """Return a row for each target, accuracies in percent.

    Args:
        run: A finished run.
        targets: Label distributions, as `tailshift.evaluate` takes them.
    """
    if not run.is_finished:
        raise ValueError(
            f"{run.directory} is not finished: only finished runs become results. "
            f"Go on with `tailshift train --resume --output {run.directory}`."
        )
    records = evaluate(run.predictions("test"), targets)
    accuracy = {(r.target, r.compensated): f"{100 * r.accuracy:.2f}" for r in records}
    about = _about(run)
    return [
        about
        | {
            "target": record.target,
            "num_samples": str(record.num_samples),
            "raw": accuracy[record.target, False],
            "compensated": accuracy.get((record.target, True), ""),
        }
        for record in records
        if not record.compensated
    ]


def _about(run: Run) -> dict[str, str]:
    config, environment = run.config, run.environment
    settings = dict(config.to_mapping()["method"])
    settings.pop("name")
    seconds = sum(epoch["seconds"] for epoch in run.metrics)
    return {
        "recipe": config.recipe,
        "method": config.method_name,
        "mode": str(settings.pop("mode", "")),
        "settings": " ".join(f"{key}={value}" for key, value in settings.items()),
        "imbalance_ratio": f"{getattr(config.data, 'imbalance_ratio', float('nan')):g}",
        "seed": str(config.seed),
        "epochs": str(config.epochs),
        "subset_hash": run.facts["data_fingerprint"],
        "commit": str(environment["commit"]),
        "hardware": str(environment["hardware"]),
        "torch": str(environment["packages"]["torch"]),
        "minutes": f"{seconds / 60:.1f}",
        "command": training_command(config),
    }


def keep_logits(run: Run, folder: Path) -> Path:
    """Save a run's test logits in half precision, named after the run.

    Args:
        run: A finished run.
        folder: Where results are kept; a file of the same run is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / kept_name(run.config)
    run.predictions("test").half().save(path, overwrite=True)
    return path


def training_command(config: RunConfig) -> str:
    """Return the command that trains a configuration, whatever machine it was on.

    Example:
        >>> training_command(load_recipe("digits_lt", ["method.name=lade", "seed=2"]))
        'tailshift train digits_lt --set method.name=lade --set seed=2'
    """
    asked = config.to_mapping()
    settings: list[str] = []
    name = asked["method"]["name"]
    if name != load_recipe(config.recipe).method_name:
        settings.append(f"method.name={name}")
    plain = load_recipe(config.recipe, settings).to_mapping()
    settings += _differences(plain, asked)
    options = [f"--set {setting}" for setting in settings]
    root = [] if config.data_name == "digits_lt" else ["--data-root DIR"]
    return " ".join(["tailshift train", config.recipe, *options, *root])


def _differences(plain: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    changed = []
    for key, value in asked.items():
        if isinstance(value, dict):
            inner = _differences(plain[key], value)
            changed += [f"{key}.{setting}" for setting in inner]
        elif value != plain[key]:
            changed.append(f"{key}={value}")
    return changed


def read_results(path: Path) -> list[dict[str, str]]:
    """Return the rows of a results file; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(
                f"{path} must have the columns {', '.join(COLUMNS)}, "
                f"but has {', '.join(reader.fieldnames or ())}."
            )
        return list(reader)


def add_results(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """Add rows to a results file; those with the same key are replaced.

    Args:
        path: The CSV file, made where it is missing.
        rows: From `result_rows`.
    """
    table = {_key(row): row for row in read_results(path)}
    table |= {_key(row): row for row in rows}
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[column] for column in KEY)
