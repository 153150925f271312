"""Settings of a run configuration, with their descriptions."""

import ast
import inspect
import textwrap
from typing import Any, NamedTuple

from tailshift.config import RunConfig

__all__ = ["Setting", "attribute_docstrings", "resolved_settings"]


class Setting(NamedTuple):
    """A setting by its dotted name."""

    name: str
    value: Any
    """The value, ready for JSON."""
    description: str
    """The first sentence of the setting's docstring; empty if it has none."""


def resolved_settings(config: RunConfig) -> list[Setting]:
    """Return every setting of a configuration, in the order of its sections.

    Use this to see what a recipe trains with after all defaults are filled in.

    Example:
        >>> from tailshift import load_recipe
        >>> settings = resolved_settings(load_recipe("digits_lt", ["method.name=lade"]))
        >>> next(s.value for s in settings if s.name == "method.alpha")
        0.1
    """
    settings, own = [], attribute_docstrings(RunConfig)
    for section, content in config.to_mapping().items():
        if not isinstance(content, dict):
            settings.append(Setting(section, content, _sentence(own.get(section, ""))))
            continue
        texts = attribute_docstrings(type(getattr(config, section)))
        settings += [
            Setting(f"{section}.{key}", value, _sentence(texts.get(key, "")))
            for key, value in content.items()
        ]
    return settings


def _sentence(text: str) -> str:
    sentence, _, _ = " ".join(text.split()).partition(". ")
    return sentence.replace("``", "").removesuffix(".") + ("." if text else "")


def attribute_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each annotated attribute of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # built-in, or made without a source file
            continue
        body = ast.parse(source).body[0]
        if isinstance(body, ast.ClassDef):
            found |= _docstrings_in(body)
    return found


def _docstrings_in(node: ast.ClassDef) -> dict[str, str]:
    pairs = zip(node.body, node.body[1:], strict=False)
    return {
        first.target.id: second.value.value
        for first, second in pairs
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
        and isinstance(second.value.value, str)
    }
