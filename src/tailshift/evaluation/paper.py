"""The numbers printed in the paper's tables, and where each of them came from."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tailshift.registry import did_you_mean


@dataclass(frozen=True)
class PaperNumber:
    """One cell of one of the paper's tables."""

    table: int
    """Number of the table, 1 to 11."""
    row: str
    """The method or the data set."""
    column: str
    """What is measured, or on which data."""
    value: float
    """The number, ``186K`` as 186 000; NaN where several are printed."""
    text: str
    """The number as it is printed."""
    note: str
    """Whose run it is, or what else is known about it."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    number: int
    title: str
    corner: str
    """What a row is: the heading above the rows' names."""
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    numbers: tuple[PaperNumber, ...]
    """Row by row."""

    def at(self, row: str, column: str) -> PaperNumber:
        """Return the number in a row and column.

        Example:
            >>> lade = paper_table(2).at("LADE", "100")
            >>> lade.value, lade.note
            (45.4, "authors' own run")
        """
        self._check("row", row, self.rows)
        self._check("column", column, self.columns)
        return self.numbers[
            self.rows.index(row) * len(self.columns) + self.columns.index(column)
        ]

    def _check(self, name: str, value: str, known: Sequence[str]) -> None:
        if value not in known:
            hint = did_you_mean(value, list(known)) or ";"
            raise ValueError(
                f"`{name}` {value!r} is not in Table {self.number}{hint} "
                f"Known: {', '.join(known)}"
            )


def paper_table(number: int) -> PaperTable:
    """Return one of the paper's tables.

    Args:
        number: 1 data sets, 2 CIFAR-100-LT, 3 Places-LT, 4 ImageNet-LT,
            5 iNaturalist 2018, 6 shifted ImageNet-LT, 7 settings, 8 ablation,
            9 shifted CIFAR-100-LT, 10 and 11 calibration.

    Example:
        >>> table = paper_table(8)
        >>> table.title, table.columns
        ('Ablation: top-1 accuracy in % of LADE', ('LADE', 'λ = 0', 'α = 0'))
    """
    tables = _read_tables()
    if number not in tables:
        raise ValueError(
            f"`number` must be that of a table of the paper, 1 to {len(tables)}, "
            f"but is {number}."
        )
    return tables[number]


@cache
def _read_tables() -> dict[int, PaperTable]:
    file = resources.files("tailshift") / "evaluation" / "paper_tables.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    numbered = (
        (int(key.removeprefix("table")), value) for key, value in content.items()
    )
    return {number: _table(number, entry) for number, entry in numbered}


def _table(number: int, entry: Mapping[str, Any]) -> PaperTable:
    columns = tuple(entry["columns"])
    notes = _notes(entry)
    numbers = [
        PaperNumber(
            number, row, column, _value(text), text, _note(entry, notes, row, column)
        )
        for row, *texts in entry["rows"]
        for column, text in zip(columns, texts, strict=True)
    ]
    return PaperTable(
        number=number,
        title=entry["title"],
        corner=entry["corner"],
        columns=columns,
        rows=tuple(row for row, *_ in entry["rows"]),
        numbers=tuple(numbers),
    )


def _notes(entry: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the notes by (row,) or (row, column)."""
    return {
        (place,) if isinstance(place, str) else tuple(place): note
        for note, places in entry.get("notes", {}).items()
        for place in places
    }


def _note(
    entry: Mapping[str, Any],
    notes: Mapping[tuple[str, ...], str],
    row: str,
    column: str,
) -> str:
    parts = (notes.get((row,), entry.get("note", "")), notes.get((row, column), ""))
    return "; ".join(part for part in parts if part)


def _value(text: str) -> float:
    """Return a printed number; ``{10, 50, 100}`` is none."""
    if text.startswith("{"):
        return float("nan")
    if text.endswith("K"):
        return round(1000 * float(text.removesuffix("K")), 3)
    return float(text)
