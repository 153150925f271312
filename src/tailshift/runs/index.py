"""Find finished runs and kept logits by their configuration."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tailshift.config import RunConfig, machine_settings
from tailshift.files import check_file_name
from tailshift.methods import Method
from tailshift.recipes import load_recipe, recipe_names
from tailshift.runs.directory import flat_settings
from tailshift.runs.files import FACTS
from tailshift.runs.run import Run, load_run

_UNDECISIVE = machine_settings() | {"seed"}
"""Settings in which two runs of the same recipe may differ."""


def find_runs(
    folder: Path, announce: Callable[[str], None] = lambda text: None
) -> list[Run]:
    """Return the finished runs below a folder, the latest last."""
    runs = []
    for path in sorted(folder.rglob(FACTS), key=lambda path: path.stat().st_mtime):
        try:
            run = load_run(path.parent)
        except (OSError, ValueError) as error:
            announce(f"skipped: {error}")
            continue
        if run.is_finished:
            runs.append(run)
    return runs


def is_run_of(config: RunConfig, recipe: RunConfig) -> bool:
    """Return whether a run has the recipe's settings, as far as they affect results."""
    return _outcome(config) == _outcome(recipe)


def _outcome(config: RunConfig) -> dict[str, Any]:
    settings = flat_settings(config).items()
    return {key: value for key, value in settings if key not in _UNDECISIVE}


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that differ from the recipe, by their dotted names.

    A section with another name is compared with the defaults; so are all settings of an
    unknown recipe.

    Example:
        >>> changed_settings(load_recipe("digits_lt", ["optim.lr=0.3", "seed=2"]))
        {'seed': 2, 'optim.lr': 0.3}
    """
    plain: dict[str, Any] = {"seed": 0}
    if config.recipe in recipe_names():
        plain = load_recipe(config.recipe).to_mapping()
    plain = _with_subset_seed(plain, config.seed)
    changed = {} if config.seed == plain["seed"] else {"seed": config.seed}
    mapping = _with_subset_seed(config.to_mapping(), config.seed)
    for section, settings in mapping.items():
        if not isinstance(settings, dict):
            continue
        own = plain.get(section)
        if own is None or own.get("name") != settings.get("name"):
            defaults = {section: _defaults(getattr(config, section))}
            own = _with_subset_seed(defaults, config.seed)[section]
        changed |= {
            f"{section}.{key}": value
            for key, value in settings.items()
            if key not in own or own[key] != value
        }
    return changed


def _with_subset_seed(mapping: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a mapping whose ``data.subset_seed`` is the run's if it is None."""
    data = mapping.get("data", {})
    if data.get("subset_seed", seed) is not None:
        return mapping
    return mapping | {"data": data | {"subset_seed": seed}}


def _defaults(section: Any) -> dict[str, Any]:
    """Return the settings of a section that have their default value."""
    if isinstance(section, BaseModel):
        others = section.model_dump(exclude_defaults=True)
        return section.model_dump(mode="json", exclude=set(others))
    fields = ((field.name, field.default) for field in dataclasses.fields(section))
    return {name: value for name, value in fields if getattr(section, name) == value}


def changes_beside_method(config: RunConfig) -> dict[str, Any]:
    """Return the changed settings that affect results, without the method's.

    Example:
        >>> changes = ["optim.lr=0.3", "train.precision=bf16-mixed", "method.name=lade"]
        >>> changes_beside_method(load_recipe("digits_lt", changes))
        {'optim.lr': 0.3}
    """
    return {
        key: value
        for key, value in changed_settings(config).items()
        if key not in _UNDECISIVE | {"data.name", "data.path"}
        if not key.startswith("method.")
    }


def kept_name(config: RunConfig) -> str:
    """Return the file name for a run's kept logits.

    It contains the method, unless it is the recipe's own, the method's mode and every
    other setting that differs from the recipe and affects results. For a recipe that is
    not in `recipe_names`, it contains the method and only the method's settings that
    differ from the defaults.

    Example:
        >>> changes = ["method.name=lade", "method.alpha=0.5", "optim.lr=0.3", "seed=2"]
        >>> kept_name(load_recipe("digits_lt", changes))
        'digits_lt-lade-paper-alpha0.5-optim.lr0.3-seed2.safetensors'
    """
    return f"{_kept_stem(config)}{config.seed}.safetensors"


def _kept_stem(config: RunConfig) -> str:
    """Return the part of the name that is the same for all seeds."""
    parts, plain = [check_file_name(config.recipe, "recipe")], _planned_method(config)
    if plain is None:
        parts.append(config.method_name)
        plain = type(config.method)()
    settings = dataclasses.asdict(config.method)
    if "mode" in settings:
        parts.append(settings.pop("mode"))
    parts += [
        f"{name}{value}"
        for name, value in settings.items()
        if value != getattr(plain, name)
    ]
    if config.recipe in recipe_names():
        beside = changes_beside_method(config).items()
        texts = (f"{key}{value}" for key, value in beside)
        parts += [re.sub(r"[^\w.]+", "_", text).strip("_") for text in texts]
    return check_file_name("-".join([*parts, "seed"]), "kept_name")


def _planned_method(config: RunConfig) -> Method | None:
    """Return the recipe's own method, if it is known and has the same type."""
    if config.recipe not in recipe_names():
        return None
    planned = load_recipe(config.recipe).method
    return planned if isinstance(planned, type(config.method)) else None


def find_kept(folder: Path, config: RunConfig) -> dict[int, Path]:
    """Return the kept logits of a recipe's runs, by seed.

    Args:
        folder: Folder of `tailshift evaluate --logits`.
        config: Recipe with the settings of the runs.
    """
    pattern = rf"{re.escape(_kept_stem(config))}(\d+)\.safetensors"
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        match = re.fullmatch(pattern, path.name)
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items()))
