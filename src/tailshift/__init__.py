"""Train a classifier once on long-tailed data, serve it on any label distribution."""

import ast
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any


def _homes() -> dict[str, str]:
    """Return the module of each public name, from the stub that type checkers read."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _homes()
__version__ = version("tailshift")
__all__ = sorted(_HOMES)  # the names are in the stub

_RENAMED = {
    "FeatureBank": "FeatureCache",
    "PriorBook": "SitePriors",
    "carried_prior": "measure_logit_prior",
    "features": "extract_features",
    "load": "load_run",
}
"""New name of each name of 0.2 that is gone from 0.4 on."""


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is first asked for: PyTorch takes a while."""
    if name in _RENAMED:
        from tailshift.deprecation import warn_deprecated

        warn_deprecated(f"tailshift.{name}", f"`tailshift.{_RENAMED[name]}`")
        return __getattr__(_RENAMED[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'tailshift' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    if home.__name__ == __name__:
        return import_module(f"{__name__}.{name}")
    # The room `report` is a verb too, and stands here under its name once imported.
    room = sys.modules.get(f"{__name__}.{name}")
    return getattr(home, name) if room is None else room


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
