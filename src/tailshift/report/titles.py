"""Titles that tell methods apart which differ only in their settings."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tailshift.methods import Method

SYMBOLS = {"alpha": "α", "beta": "β", "gamma": "γ", "lam": "λ", "tau": "τ"}


def distinct_titles(methods: Sequence[Method]) -> list[str]:
    """Return a title for each method; settings in which namesakes differ are added.

    Example:
        >>> from tailshift.recipes import load_recipe
        >>> lade = [f"method.alpha={alpha}" for alpha in (0.01, 0.1)]
        >>> changes = [["method.name=lade", change] for change in lade]
        >>> distinct_titles([load_recipe("digits_lt", c).method for c in changes])
        ['LADE (α = 0.01)', 'LADE (α = 0.1)']
    """
    titles = []
    for method in methods:
        namesakes = [asdict(m) for m in methods if m.title == method.title]
        differing = [
            f"{SYMBOLS.get(key, key)} = {_text(value)}"
            for key, value in asdict(method).items()
            if any(other.get(key) != value for other in namesakes)
        ]
        ending = f" ({', '.join(differing)})" if differing else ""
        titles.append(method.title + ending)
    return titles


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
