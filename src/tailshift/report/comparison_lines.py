"""Lines of ours beside the paper's, as text, whatever table they go into."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailshift.evaluation.comparison import Comparison
from tailshift.evaluation.measures import NOTHING
from tailshift.evaluation.shifts import is_shift

OURS = "ours (n): mean ± sd of n seeds, last epoch, uniform test set"
OURS_SHIFTED = (
    "ours (n): mean ± sd of n seeds, last epoch, the first samples of each class"
)
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Entry:
    """One cell's text."""

    text: str
    is_best: bool = False
    """Whether it is the best of its column, among ours or among the paper's."""


@dataclass(frozen=True)
class Line:
    """Ours or the paper's numbers of a row."""

    name: str
    """The row's name with the marks of its notes; empty on its second line."""
    whose: str
    """``"ours (3)"`` or ``"paper"``."""
    entries: tuple[Entry, ...]


def comparison_lines(
    comparisons: Sequence[Comparison], notes: dict[str, int], *, ranked: bool
) -> list[Line]:
    """Return two lines for each row, ours and the paper's.

    Args:
        comparisons: The cells of one table, row by row.
        notes: From :func:`numbered_notes`.
        ranked: Mark the best of each column.
    """
    best = _best(comparisons) if ranked else set()
    lines = []
    for row, cells in _rows(comparisons).items():
        shared = set.intersection(*(set(_parts(cell)) for cell in cells))
        name = row + _marks(shared, notes)
        ours = (Entry(_ours(cell), (cell, True) in best) for cell in cells)
        paper = (
            Entry(_paper(cell, notes, shared), (cell, False) in best) for cell in cells
        )
        lines.append(Line(name, _whose(cells), tuple(ours)))
        lines.append(Line("", "paper", tuple(paper)))
    return lines


def comparison_columns(comparisons: Iterable[Comparison]) -> list[str]:
    """Return the columns in the order of their first appearance."""
    return list(dict.fromkeys(cell.column for cell in comparisons))


def number_format(cell: Comparison) -> str:
    """Return how a cell's numbers are written, as a format."""
    return {"count": ",.0f", "setting": "g"}.get(cell.quantity, f".{cell.decimals}f")


def number_text(value: float, style: str, nothing: str = NOTHING) -> str:
    """Return a number as text; what stands for nothing where it is NaN."""
    return nothing if math.isnan(value) else format(value, style)


def numbered_notes(comparisons: Iterable[Comparison]) -> dict[str, int]:
    """Return all notes with their numbers, from 1."""
    parts = dict.fromkeys(part for cell in comparisons for part in _parts(cell))
    return {part: number for number, part in enumerate(parts, start=1)}


def footnotes(comparisons: Sequence[Comparison], notes: dict[str, int]) -> list[str]:
    """Return what stands below a table: what ours are, and the numbered notes."""
    numbered = [f"{_superscript(number)} {part}" for part, number in notes.items()]
    if not any(cell.num_seeds for cell in comparisons):
        return numbered
    is_shifted = any(
        ":" in column and is_shift(column) for column in comparison_columns(comparisons)
    )
    return [OURS_SHIFTED if is_shifted else OURS, *numbered]


def _rows(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    rows: dict[str, list[Comparison]] = {}
    for cell in comparisons:
        rows.setdefault(cell.row, []).append(cell)
    return rows


def _best(comparisons: Sequence[Comparison]) -> set[tuple[Comparison, bool]]:
    """Return the best cells of each column as printed: (cell, whether ours)."""
    best = set()
    for column in comparison_columns(comparisons):
        cells = [cell for cell in comparisons if cell.column == column]
        for is_ours in (True, False):
            values = {c: c.ours_mean if is_ours else c.paper for c in cells}
            known = {c: v for c, v in values.items() if not math.isnan(v)}
            if len(known) < 2:
                continue  # nobody to be better than
            choose = max if cells[0].is_high_better else min
            style = number_format(cells[0])
            printed = format(choose(known.values()), style)
            best |= {
                (c, is_ours) for c, v in known.items() if format(v, style) == printed
            }
    return best


def _whose(cells: Sequence[Comparison]) -> str:
    """Return "ours" with the number of seeds, where there are any."""
    numbers = {cell.num_seeds for cell in cells if not math.isnan(cell.ours_mean)}
    if numbers <= {0}:
        return "ours"
    low, high = min(numbers), max(numbers)
    return f"ours ({low})" if low == high else f"ours ({low}–{high})"


def _ours(cell: Comparison) -> str:
    mean = number_text(cell.ours_mean, number_format(cell))
    if cell.num_seeds < 2:
        return mean
    return f"{mean} ± {number_text(cell.ours_sd, number_format(cell))}"


def _paper(cell: Comparison, notes: dict[str, int], shared: set[str]) -> str:
    text = number_text(cell.paper, number_format(cell))
    marks = _marks(set(_parts(cell)) - shared, notes)
    if math.isnan(cell.difference):
        return f"{text} {marks}".rstrip()  # set apart: no exponent
    return f"{text} ({_signed(cell.difference, number_format(cell))}){marks}"


def _signed(value: float, style: str) -> str:
    """Return a number with its sign; none for what is printed as zero."""
    text = format(value, f"+{style}").replace("-", "−")
    return text if set(text) & set("123456789") else text[1:]


def _parts(cell: Comparison) -> list[str]:
    return cell.note.split("; ") if cell.note else []


def _marks(parts: Iterable[str], notes: dict[str, int]) -> str:
    numbers = sorted(notes[part] for part in parts)
    return "˒".join(_superscript(number) for number in numbers)


def _superscript(number: int) -> str:
    return str(number).translate(SUPERSCRIPTS)
