"""Named entries with an answer for misspelt names."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

T = TypeVar("T")


def did_you_mean(name: str, known: list[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, else ``""``.

    Example:
        >>> did_you_mean("lad", ["lade", "softmax"])
        "; did you mean 'lade'?"
        >>> did_you_mean("zzz", ["lade", "softmax"])
        ''
    """
    nearest = get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


class Registry(Generic[T]):
    """Entries of one kind by name; a name is given once.

    Example:
        >>> methods = Registry[int]("method")
        >>> methods.add("lade", 1)
        >>> methods.get("lad")
        Traceback (most recent call last):
        ...
        ValueError: unknown method 'lad'; did you mean 'lade'? Known: lade
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Register ``entry`` under a new name."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is already registered.")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """Return the entry of that name, or name the nearest one in a ValueError."""
        if name in self._entries:
            return self._entries[name]
        hint = did_you_mean(name, self.names()) or ";"
        raise ValueError(
            f"unknown {self.kind} {name!r}{hint} Known: {', '.join(self.names())}"
        )

    def names(self) -> list[str]:
        """Return all names in alphabetical order."""
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
