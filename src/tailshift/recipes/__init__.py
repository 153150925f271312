"""Recipes: TOML files, one for each row of the paper and some quick ones."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tailshift.config import RunConfig
from tailshift.registry import did_you_mean


def recipe_names() -> list[str]:
    """Return the names of all recipes that come with the package."""
    folder = resources.files("tailshift") / "recipes"
    names = (Path(entry.name) for entry in folder.iterdir())
    return sorted(
        name.stem
        for name in names
        if name.suffix == ".toml" and not name.stem.startswith("_")
    )


def recipe_sentence(recipe: str) -> str:
    """Return what a recipe is, in one sentence."""
    return str(_read_recipe(recipe).get("sentence", ""))


def load_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the checked configuration of a recipe.

    Args:
        recipe: A name of `recipe_names`, or the path of a TOML file.
        overrides: Settings to change, each like ``"method.alpha=0.05"``.

    Example:
        >>> config = load_recipe("digits_lt", ["method.name=lade", "method.alpha=0.5"])
        >>> config.method
        LADE(alpha=0.5, lam=0.01, mode='paper', class_weights='source')
    """
    settings = _read_recipe(str(recipe))
    settings.pop("sentence", None)
    # Names first: another method begins afresh, and must not undo its own settings.
    for change in sorted(map(parse_override, overrides), key=_changes_no_name):
        settings = _merge(settings, change)
    return RunConfig.from_mapping(settings)


def _changes_no_name(change: Mapping[str, Any]) -> bool:
    return not any(
        isinstance(part, Mapping) and "name" in part for part in change.values()
    )


def _read_recipe(recipe: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a recipe's settings laid over those of the recipe it extends.

    Args:
        recipe: A name or the path of a TOML file.
        above: The recipes that extend this one.
    """
    if recipe in above:
        raise ValueError(f"recipe {recipe!r} extends itself: {' → '.join(above)}.")
    if recipe.endswith(".toml"):
        path: Any = Path(recipe)
        if not path.is_file():
            raise FileNotFoundError(f"there is no recipe file {recipe}.")
    else:
        path = resources.files("tailshift") / "recipes" / f"{recipe}.toml"
        if not path.is_file():
            known = recipe_names()
            hint = did_you_mean(recipe, known) or ";"
            raise ValueError(
                f"unknown recipe {recipe!r}{hint} `tailshift list recipes` shows all."
            )
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None
    base = settings.pop("extends", None)
    settings["recipe"] = Path(recipe).stem
    if base is None:
        return settings
    if str(base).endswith(".toml"):
        base = Path(recipe).parent / base
    return _merge(_read_recipe(str(base), (*above, recipe)), settings)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay ``over`` on ``base``; a section that changes its name starts afresh."""
    merged = dict(base)
    for key, value in over.items():
        below = base.get(key)
        if not isinstance(value, Mapping) or not isinstance(below, Mapping):
            merged[key] = value
        elif "name" in value and value["name"] != below.get("name"):
            merged[key] = dict(value)
        else:
            merged[key] = _merge(below, value)
    return merged


def parse_override(override: str) -> dict[str, Any]:
    """Return ``"a.b=v"`` as a nested mapping; the value is read as TOML.

    Example:
        >>> parse_override("optim.milestones=[10, 20]")
        {'optim': {'milestones': [10, 20]}}
        >>> parse_override("method.name=lade")
        {'method': {'name': 'lade'}}
    """
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ValueError(f"`--set` takes KEY=VALUE, but got {override!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    for part in reversed(parts):
        value = {part: value}
    return dict(value)
