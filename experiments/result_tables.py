"""Results as CSV files, and the Markdown tables that are generated from them."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
Row = dict[str, str | int | float]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows to a CSV file, with the keys of the first row as its heading."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def group_rows(
    rows: Iterable[dict[str, str]], *keys: str
) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Return the rows of each combination of values, in order of appearance."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def markdown_table(heading: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heading, ["---"] * len(heading), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fill_markers(document: Path, tables: Mapping[str, str]) -> None:
    """Write each table between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``."""
    text = document.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin not in text:
            raise ValueError(f"{document.name} has no marker {begin}.")
        text = re.sub(
            rf"({re.escape(begin)}\n).*?({re.escape(end)})",
            lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    document.write_text(text, encoding="utf-8")
