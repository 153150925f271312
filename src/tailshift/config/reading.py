"""Read sections of a configuration; collect a sentence for each fault."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import (
    TypeAdapter,
    ValidationError,
)

from tailshift.registry import Registry, did_you_mean

_Filled = TypeVar("_Filled")


class ConfigError(ValueError):
    """Every fault of a configuration, a sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


def unknown_setting(key: str, known: Sequence[str]) -> str:
    """Return the sentence about an unknown setting, with the nearest known one."""
    section, _, leaf = key.rpartition(".")
    hint = did_you_mean(leaf, list(known)) or ";"
    where = f" of `{section}`" if section else ""
    return f"`{key}` is not a setting{where}{hint} Known: {', '.join(sorted(known))}"


def read_named_section(
    section: str, registry: Registry[Any], mapping: Mapping[str, Any], faults: list[str]
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
    return read_section(section, kind, rest, faults)


def read_section(
    section: str, kind: type[_Filled], values: Any, faults: list[str]
) -> _Filled | None:
    """Return the settings class of a section, filled in; faults are added to a list."""
    if not isinstance(values, Mapping):
        faults.append(f"`{section}` must be a table of settings, but is {values!r}.")
        return None
    if dataclasses.is_dataclass(kind):
        known = [field.name for field in dataclasses.fields(kind)]
    else:
        known = list(getattr(kind, "model_fields", ()))
    unknown = [key for key in values if key not in known]
    faults.extend(unknown_setting(f"{section}.{key}", known) for key in unknown)
    hints = get_type_hints(kind)
    settings = {  # TOML has no word for None
        key: None if value == "none" and NoneType in get_args(hints[key]) else value
        for key, value in values.items()
        if key in known
    }
    try:
        # Strict as JSON is: "5" and true are no numbers, but a list may be a tuple.
        text = json.dumps(settings, default=str)
        checked: _Filled = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        faults.extend(_sentence(section, fault) for fault in error.errors())
        return None
    return checked


# Making an adapter takes longer than all that it checks.
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _sentence(section: str, fault: Any) -> str:
    path = ".".join([section, *(str(part) for part in fault["loc"])])
    if fault["type"] == "missing":
        return f"`{path}` is missing."
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    rule = fault["msg"].replace("Input should be", "must be", 1)
    return f"`{path}` {rule}, but is {fault['input']!r}."
