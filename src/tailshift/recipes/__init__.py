"""Recipes: a TOML file for each benchmark, with a row for each row of the paper."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tailshift.config import RunConfig
from tailshift.data import Dataset, parse_data_option
from tailshift.data.features import FeatureCache, as_toml
from tailshift.files import read_text
from tailshift.models.pretrained import named_network
from tailshift.registry import did_you_mean


def recipe_names() -> list[str]:
    """Return the names of all recipes that come with the package."""
    return sorted(_packaged())


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


def dataset_of(option: str, settings: Sequence[str] = ()) -> Dataset:
    """Return the data set that an option or a recipe names, its settings checked.

    Args:
        option: As ``--data`` takes it, or a name of `recipe_names`.
        settings: Settings to change, each like ``"data.image_size=96"``.

    Example:
        >>> dataset_of("cifar100_lt_ir50_lade").imbalance_ratio
        50.0
    """
    if option in _packaged():
        chosen = dict(_packaged()[option]["data"])
    else:
        chosen = dict(parse_data_option(option))
    for setting in settings:
        change = parse_override(setting).get("data")
        if not isinstance(change, dict):
            raise ValueError(
                f"`--set` must be data.KEY=VALUE here, but is {setting!r}."
            )
        chosen |= change
    run = load_recipe("digits_lt").to_mapping()  # a sound one, for its other sections
    return RunConfig.from_mapping(run | {"data": chosen}).data


def data_settings(option: str) -> list[str]:
    """Return the settings that ``--data`` stands for; a path is text, whatever it is.

    Example:
        >>> data_settings("folder:photos")
        ['data.name="folder"', 'data.path="photos"']
    """
    chosen = parse_data_option(option).items()
    return [f"data.{key}={as_toml(value)}" for key, value in chosen]


FEATURE_SETTINGS = (
    "optim.name=lbfgs",
    "optim.lr=0.1",
    "optim.nesterov=true",
    "optim.weight_decay=auto",
    "optim.schedule=cosine",
    "train.epochs=20",
    "train.batch_size=256",
    "train.drop_last=false",
)
"""How a head is trained on features, whatever the recipe says of whole networks."""


def feature_settings(features: str) -> list[str]:
    """Return the settings of a run on features.

    Args:
        features: A feature cache's folder, or the network that makes one from the
            recipe's images: ``lite0`` or ``timm:NAME``.

    Example:
        >>> feature_settings("timm:resnet18")[:2]
        ['model.name="timm:resnet18"', 'model.pretrained=true']
    """
    if Path(features).is_dir():
        return [*FeatureCache.load(features).settings, *FEATURE_SETTINGS]
    network = {**named_network(features), "frozen": True}
    chosen = [f"model.{key}={as_toml(value)}" for key, value in network.items()]
    return [*chosen, *FEATURE_SETTINGS]


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
    if not recipe.endswith(".toml"):
        return dict(_packaged_recipe(recipe))
    path = Path(recipe)
    if not path.is_file():
        raise FileNotFoundError(f"there is no recipe file {recipe}.")
    settings = _read_toml(path)
    base = settings.pop("extends", None)
    settings["recipe"] = path.stem
    if base is None:
        return settings
    if str(base).endswith(".toml"):
        base = path.parent / base
    return _merge(_read_recipe(str(base), (*above, recipe)), settings)


def _read_toml(path: Path | Traversable) -> dict[str, Any]:
    if isinstance(path, Path):
        text = read_text(path)
    else:  # inside a package that is an archive
        text = path.read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None


def _packaged_recipe(recipe: str) -> Mapping[str, Any]:
    found = _packaged().get(recipe)
    if found is None:
        hint = did_you_mean(recipe, recipe_names()) or ";"
        raise ValueError(
            f"unknown recipe {recipe!r}{hint} `tailshift list recipes` shows all."
        )
    return found


@cache
def _packaged() -> dict[str, dict[str, Any]]:
    """Return the settings of every recipe that comes with the package, by name."""
    folder = resources.files("tailshift") / "recipes"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    recipes = [recipe for file in files for recipe in _recipes_in(file)]
    found = {recipe["recipe"]: recipe for recipe in recipes}
    assert len(found) == len(recipes), "two recipes have the same name"
    return found


def _recipes_in(file: Traversable) -> Iterator[dict[str, Any]]:
    """Yield the recipes of a benchmark: the file's rows, or the file itself."""
    base = _read_toml(file)
    if "rows" not in base:
        yield {**base, "recipe": file.name.removesuffix(".toml")}
        return
    rows, forms, varies = (base.pop(key, {}) for key in ("rows", "forms", "varies"))
    for name, parts in rows.items():
        for part in parts if isinstance(parts, list) else [parts]:
            row = {key: value for key, value in part.items() if key not in forms}
            for chosen in _choices(part, forms, varies) if forms else [{}]:
                yield _named(reduce(_merge, (base, chosen, row, {"row": name})))


def _choices(
    part: Mapping[str, Any], forms: Mapping[str, Any], varies: str
) -> Iterator[dict[str, Any]]:
    """Yield the settings of each form that a row has, with each number it lists.

    Args:
        part: The row, with a list of numbers under the name of each form it has.
        forms: Settings by the form's name.
        varies: The setting that the numbers are values of, like ``"train.epochs"``.
    """
    for form, settings in forms.items():
        for number in part.get(form, ()):
            yield _merge(settings, parse_override(f"{varies}={number}"))


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's settings, with its name and sentence filled in from them."""
    rest = {key: value for key, value in settings.items() if not isinstance(value, str)}
    texts = {key: settings[key].format(**settings) for key in ("recipe", "sentence")}
    return rest | texts


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
