"""Results as data: a CSV with one row for each run and target."""

import csv
import io
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tailshift.config import RunConfig
from tailshift.evaluation.records import Record, effective_text, evaluate
from tailshift.evaluation.sampling import Sampling
from tailshift.files import atomic_write, make_folder, read_text
from tailshift.recipes import parse_override, recipe_names
from tailshift.runs.files import used_plugins
from tailshift.runs.index import changed_settings, changes_beside_method, kept_name
from tailshift.runs.run import Run
from tailshift.targets import PAPER_TARGETS
from tailshift.text import csv_cell

COLUMNS = (
    "recipe",
    "method",
    "mode",
    "settings",
    "imbalance_ratio",
    "seed",
    "subset_seed",
    "epochs",
    "target",
    "sampling",
    "num_samples",
    "num_effective",
    "raw",
    "compensated",
    "subset_hash",
    "commit",
    "hardware",
    "torch",
    "precision",
    "minutes",
    "processor_minutes",
    "command",
)
NEWER_COLUMNS = {"num_effective", "processor_minutes", "sampling", "subset_seed"}
"""Columns that files of an earlier version may lack."""
KEY = ("recipe", "method", "mode", "settings", "seed", "target", "sampling")
"""What tells two rows apart; a new row replaces the one with the same key. Settings are
all of the method's, and the others that were changed."""


def result_rows(
    run: Run,
    targets: Sequence[str] = PAPER_TARGETS,
    *,
    records: Sequence[Record] | None = None,
) -> list[dict[str, str]]:
    """Return a row for each target, accuracies in percent.

    Args:
        run: A finished run.
        targets: Label distributions, as `tailshift.evaluate` takes them.
        records: What the run scores on them, if that is known already.
    """
    if not run.is_finished:
        raise ValueError(
            f"{run.directory} is not finished: only finished runs become results. "
            f"Resume with `tailshift train --resume --output {run.directory}`."
        )
    if records is None:
        records = evaluate(run.predictions("test"), targets)
    accuracy = {(r.target, r.compensated): f"{100 * r.accuracy:.2f}" for r in records}
    about = _about(run)
    return [
        about
        | {
            "target": record.target,
            "sampling": record.sampling,
            "num_samples": str(record.num_samples),
            "num_effective": effective_text(record.num_effective),
            "raw": accuracy[record.target, False],
            "compensated": accuracy.get((record.target, True), ""),
        }
        for record in records
        if not record.compensated
    ]


def _about(run: Run) -> dict[str, str]:
    config, environment = run.config, run.environment
    settings = dict(config.to_mapping()["method"]) | changes_beside_method(config)
    settings.pop("name")
    return {
        "recipe": config.recipe,
        "method": config.method_name,
        "mode": str(settings.pop("mode", "")),
        "settings": " ".join(f"{key}={value}" for key, value in settings.items()),
        "imbalance_ratio": f"{getattr(config.data, 'imbalance_ratio', float('nan')):g}",
        "seed": str(config.seed),
        "subset_seed": _subset_seed(config),
        "epochs": str(config.epochs),
        "subset_hash": run.facts.data_fingerprint,
        "commit": str(environment.get("commit")),
        "hardware": str(environment.get("hardware")),
        "torch": str(environment.get("packages", {}).get("torch")),
        "precision": config.train.precision,
        "minutes": _minutes(run, "seconds"),
        "processor_minutes": _minutes(run, "processor_seconds"),
        "command": training_command(config),
    }


def _subset_seed(config: RunConfig) -> str:
    """Return the seed of the draw of training images; empty if none are drawn."""
    drawn = getattr(config.data, "subset_seed", "")
    return str(config.seed if drawn is None else drawn)


def _minutes(run: Run, key: str) -> str:
    """Return how long training took; nothing if an epoch does not say."""
    seconds = [epoch.get(key) for epoch in run.metrics]
    known = [value for value in seconds if value is not None]
    return f"{sum(known) / 60:.1f}" if len(known) == len(seconds) else ""


def keep_logits(run: Run, folder: Path) -> Path:
    """Save a run's test logits, named after the run.

    They are saved in half precision if they fit. The logits of a run that diverged may
    not: LADE without its regulariser (λ = 0) lets them drift without bound.

    Args:
        run: A finished run.
        folder: Folder to write to; a file of the same run is replaced.
    """
    path = folder / kept_name(run.config)
    make_folder(folder, "logits")
    predictions = run.predictions("test")
    if predictions.fits_half:
        predictions = predictions.half()
    predictions.save(path, overwrite=True)
    return path


def training_command(config: RunConfig) -> str:
    """Return the command that trains a configuration, whatever machine it was on.

    A recipe that does not come with the package is taken for a TOML file of that name,
    which may have changed since: every setting that is not the default is named.

    Example:
        >>> from tailshift import load_recipe
        >>> training_command(load_recipe("digits_lt", ["method.name=lade", "seed=2"]))
        'tailshift train digits_lt --set method.name=lade --set seed=2'
    """
    known = config.recipe in recipe_names()
    recipe = shlex.quote(config.recipe if known else f"{config.recipe}.toml")
    changed = changed_settings(config)
    if "PATH" in config.data.option:
        changed.pop("data.name", None)
        changed.pop("data.path", None)
    names_first = sorted(changed, key=lambda key: not key.endswith(".name"))
    settings = [f"--set {_setting(key, changed[key])}" for key in names_first]
    plugins = [shlex.join(plugin.options) for plugin in used_plugins(config)]
    parts = ["tailshift train", recipe, *settings, config.data.option, *plugins]
    return " ".join(filter(None, parts))


def _setting(key: str, value: Any) -> str:
    """Return ``KEY=VALUE`` as `--set` takes it, quoted for a shell."""
    if value is None:
        return f"{key}=none"
    is_word = isinstance(value, str) and parse_override(f"x={value}") == {"x": value}
    text = value if is_word else json.dumps(value, ensure_ascii=False)
    return shlex.quote(f"{key}={text}")


def read_results(path: Path) -> list[dict[str, str]]:
    """Return the rows of a results file; none if there is no file.

    What a file of an earlier version does not say is empty, except for `sampling`:
    such versions took the first samples of each class, or re-weighted all of them.
    """
    if not path.exists():
        return []
    text = io.StringIO(read_text(path), newline="")
    try:
        columns, *rows = list(csv.reader(text, strict=True)) or [[]]
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file ({error}).") from None
    known = [c for c in COLUMNS if c in columns or c not in NEWER_COLUMNS]
    if columns != known:
        raise ValueError(
            f"{path} must have the columns {', '.join(COLUMNS)}, "
            f"but has {', '.join(columns)[:200]}."
        )
    for number, row in enumerate(rows, start=1):
        if row and len(row) != len(columns):
            raise ValueError(
                f"{path} must have {len(columns)} values a row, but row {number} has "
                f"{len(row)}."
            )
    empty = dict.fromkeys(COLUMNS, "")
    table = [empty | dict(zip(columns, row, strict=True)) for row in rows if row]
    return [row | {"sampling": row["sampling"] or _earlier(row)} for row in table]


def _earlier(row: dict[str, str]) -> Sampling:
    """Return how the test set of a row without `sampling` was drawn."""
    is_plain = row["num_effective"] in ("", row["num_samples"])
    return "first" if is_plain else "reweighted"


def add_results(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """Add rows to a results file; those with the same key are replaced.

    Args:
        path: The CSV file, made if it is missing.
        rows: From `result_rows`.
    """
    table = {_key(row): row for row in read_results(path)}
    for row in rows:
        cells = {column: csv_cell(text) for column, text in row.items()}
        table[_key(cells)] = cells
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[column] for column in KEY)
