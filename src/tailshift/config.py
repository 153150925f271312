"""Recipes: TOML in, one checked `RunConfig` out, with every fault listed at once."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from tailshift.data import DATASETS, Dataset
from tailshift.methods import METHODS, Method
from tailshift.registry import did_you_mean

Settings = TypeVar("Settings")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(_Section):
    """The network."""

    name: str
    """A name of `tailshift list models`, or ``timm:NAME``."""
    pretrained: bool = False
    """Start from timm's published weights."""


class OptimConfig(_Section):
    """SGD and its learning rate over time."""

    lr: PositiveFloat
    """Highest learning rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    """Nesterov's form of momentum."""
    weight_decay: NonNegativeFloat = 5e-4
    """L2 penalty, on every parameter."""
    schedule: Literal["constant", "multi_step", "cosine", "one_cycle"] = "constant"
    """How the learning rate goes: see `tailshift.training.schedules`."""
    warmup_epochs: NonNegativeInt = 0
    """Epochs of linear warm-up before ``multi_step`` or ``cosine``."""
    milestones: tuple[PositiveInt, ...] = ()
    """Epochs, counted from 1, from which ``multi_step`` multiplies by ``decay``."""
    decay: float = Field(default=0.1, gt=0, le=1)
    """Factor at each milestone."""


class TrainConfig(_Section):
    """Length, batches and machine."""

    epochs: PositiveInt
    batch_size: PositiveInt
    """Samples a step, over all processes."""
    drop_last: bool = False
    """Leave out an epoch's last batch where it is not full."""
    precision: Literal["32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    channels_last: bool = True
    """Keep a pixel's channels side by side in memory: convolutions are faster."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: PositiveInt = 1
    """Processes on each machine."""
    num_nodes: PositiveInt = 1
    """Machines."""
    checkpoint_every: PositiveInt = 1
    """Epochs between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard events beside the metrics file."""


class EvalConfig(_Section):
    """What is kept of the evaluated splits."""

    batch_size: PositiveInt = 512
    half_logits: bool = False
    """Keep logits in half precision: half the disk, three decimal digits."""


class RunConfig(BaseModel):
    """All that decides the outcome of a run."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    recipe: str
    """Name of the recipe that this came from."""
    data: Dataset
    model: ModelConfig
    method: Method
    optim: OptimConfig
    train: TrainConfig
    eval: EvalConfig
    seed: int = 0

    @property
    def data_name(self) -> str:
        """The data set's registered name."""
        return _registered_name(DATASETS, self.data)

    @property
    def method_name(self) -> str:
        """The method's registered name."""
        return _registered_name(METHODS, self.method)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "RunConfig":
        """Check a nested mapping, as a recipe or `to_mapping` gives it.

        Raises:
            ConfigError: With one sentence for each fault.
        """
        faults: list[str] = []
        known = list(cls.model_fields)
        faults.extend(_unknown_key(key, known) for key in mapping if key not in known)
        sections: dict[str, Any] = {
            "recipe": mapping.get("recipe", "unnamed"),
            "data": _named_section("data", DATASETS, mapping, faults),
            "method": _named_section("method", METHODS, mapping, faults),
            "seed": mapping.get("seed", 0),
        }
        for name in ("model", "optim", "train", "eval"):
            kind = cls.model_fields[name].annotation
            assert kind is not None
            sections[name] = _section(name, kind, mapping.get(name, {}), faults)
        if not isinstance(sections["seed"], int) or not 0 <= sections["seed"] < 2**32:
            faults.append(
                f"`seed` must be an integer in 0..2**32-1, but is {sections['seed']!r}."
            )
        if faults:
            raise ConfigError(faults)
        return cls(**sections)

    def to_mapping(self) -> dict[str, Any]:
        """Return the nested mapping that `from_mapping` takes; ready for JSON."""
        return {
            "recipe": self.recipe,
            "seed": self.seed,
            "data": {"name": self.data_name, **dataclasses.asdict(self.data)},
            "model": self.model.model_dump(mode="json"),
            "method": {"name": self.method_name, **dataclasses.asdict(self.method)},
            "optim": self.optim.model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
            "eval": self.eval.model_dump(mode="json"),
        }


class ConfigError(ValueError):
    """Every fault of a configuration, a sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


def _registered_name(registry: Any, entry: object) -> str:
    return next(name for name in registry if registry.get(name) is type(entry))


def _unknown_key(key: str, known: Sequence[str]) -> str:
    section, _, leaf = key.rpartition(".")
    hint = did_you_mean(leaf, list(known)) or ";"
    where = f" of `{section}`" if section else ""
    return f"`{key}` is not a setting{where}{hint} Known: {', '.join(sorted(known))}"


def _named_section(
    section: str, registry: Any, mapping: Mapping[str, Any], faults: list[str]
) -> Any:
    """Return the registered settings class that ``name`` asks for, filled in."""
    values = mapping.get(section, {})
    if not isinstance(values, Mapping) or "name" not in values:
        faults.append(f"`{section}.name` is missing. Known: {', '.join(registry)}")
        return None
    try:
        kind = registry.get(str(values["name"]))
    except ValueError as error:
        faults.append(f"`{section}.name`: {error}")
        return None
    rest = {key: value for key, value in values.items() if key != "name"}
    return _section(section, kind, rest, faults)


def _section(
    section: str, kind: type[Settings], values: Any, faults: list[str]
) -> Settings | None:
    if not isinstance(values, Mapping):
        faults.append(f"`{section}` must be a table of settings, but is {values!r}.")
        return None
    if dataclasses.is_dataclass(kind):
        known = [field.name for field in dataclasses.fields(kind)]
    else:
        known = list(getattr(kind, "model_fields", ()))
    unknown = [key for key in values if key not in known]
    faults.extend(_unknown_key(f"{section}.{key}", known) for key in unknown)
    try:
        return TypeAdapter(kind).validate_python(
            {key: value for key, value in values.items() if key in known}
        )
    except ValidationError as error:
        faults.extend(_sentence(section, fault) for fault in error.errors())
        return None


def _sentence(section: str, fault: Any) -> str:
    path = ".".join([section, *(str(part) for part in fault["loc"])])
    if fault["type"] == "missing":
        return f"`{path}` is missing."
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    rule = fault["msg"].replace("Input should be", "must be", 1)
    return f"`{path}` {rule}, but is {fault['input']!r}."


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
    for override in overrides:
        settings = _merge(settings, parse_override(override))
    return RunConfig.from_mapping(settings)


def _read_recipe(recipe: str) -> dict[str, Any]:
    """Return a recipe's settings laid over those of the recipe it extends."""
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None
    base = settings.pop("extends", None)
    settings["recipe"] = Path(recipe).stem
    return _merge(_read_recipe(base), settings) if base else settings


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
    if not equals or not key.strip():
        raise ValueError(f"`--set` takes KEY=VALUE, but got {override!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return dict(value)
