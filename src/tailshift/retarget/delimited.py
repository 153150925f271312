"""CSV and TSV tables of scores; all cells but the scores keep their bytes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tailshift.retarget.columns import (
    LongColumns,
    class_columns,
    class_names_of,
    label_position,
    long_columns,
)
from tailshift.retarget.scores import ScoreArray, blank_rows
from tailshift.retarget.tables import Chunk, Table, TableLayout
from tailshift.text import cut

CSV_DELIMITERS = ",\t;|"
_SAMPLE_ROWS = 200
BOM = "\ufeff"
MAX_RECORD = 2**26  # characters: an open quote must not swallow a whole file


class TextRow(NamedTuple):
    """A row as it is written: the texts of its cells, quotes kept, and its end."""

    cells: list[str]
    end: str


def records(path: Path, delimiter: str) -> Iterator[TextRow]:
    """Yield the rows of a file. Quoted cells may hold delimiters and line ends."""
    cell = re.compile(
        rf'([\s{BOM}]*"(?:[^"]|"")*"[^{re.escape(delimiter)}]*|'
        rf"[^{re.escape(delimiter)}]*)({re.escape(delimiter)}|$)",
        re.S,
    )
    held: TextRow | None = None
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        for line in _whole_lines(file, path):
            body = line.rstrip("\r\n")
            end = line[len(body) :]
            if held is not None and not body.strip():
                held = TextRow(held.cells, held.end + line)  # a blank line is no row
                continue
            if held is not None:
                yield held
            cells = body.split(delimiter)
            held = TextRow(_quoted_cells(body, cell) if '"' in body else cells, end)
    if held is not None:
        yield held


def _quoted_cells(body: str, cell: re.Pattern[str]) -> list[str]:
    cells, start, found = [], 0, " "
    while found:
        match = cell.match(body, start)
        assert match is not None
        cells.append(match[1])
        start, found = match.end(), match[2]
    return cells


def _whole_lines(file: Iterable[str], path: Path) -> Iterator[str]:
    """Join lines while a quoted cell is open."""
    pending = ""
    for line in file:
        pending += line
        if len(pending) > MAX_RECORD:
            raise ValueError(f"{path} has a row longer than {MAX_RECORD} characters.")
        if pending.count('"') % 2 == 0:
            yield pending
            pending = ""
    if pending:
        yield pending


def text_of(cell: str) -> str:
    """Return what a cell says, without its quotes.

    Example:
        >>> text_of('"roe, deer"')
        'roe, deer'
    """
    text = cell.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('""', '"')
    return text


def open_delimited(path: Path, layout: TableLayout) -> Table:
    """Open a wide table (one column per class) or a long one (one row per class)."""
    delimiter = _delimiter(path)
    rows = records(path, delimiter)
    heading = next(rows)
    header = [text_of(cell).removeprefix(BOM) for cell in heading.cells]
    header[0] = text_of(heading.cells[0].removeprefix(BOM))
    long = long_columns(header) if layout.class_columns is None else None
    if long is not None:
        return LongText(path, delimiter, header, long)
    return WideText(path, delimiter, header, layout)


def _delimiter(path: Path) -> str:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        line = next(_whole_lines(file, path), "")
    bare = re.sub(r'"(?:[^"]|"")*"', "", line)
    found = max(CSV_DELIMITERS, key=bare.count)
    if not bare.count(found):
        raise ValueError(
            f"{path} is not a table of predictions: its first line "
            f"{cut(repr(line.strip()), 60)} has one column. Give a CSV, TSV, Parquet, "
            ".npz, .npy, safetensors or JSON file."
        )
    return found


class WideText(Table):
    """A CSV or TSV file with one column per class."""

    def __init__(
        self, path: Path, delimiter: str, header: list[str], layout: TableLayout
    ) -> None:
        self.path, self.delimiter, self.header = path, delimiter, header
        self.format = "wide TSV" if delimiter == "\t" else "wide CSV"
        rows = islice(records(path, delimiter), 1, _SAMPLE_ROWS + 1)
        width = len(header)
        texts = ([text_of(cell) for cell in row.cells] for row in rows)
        sample = [row for row in texts if len(row) == width]
        if not sample:
            raise ValueError(f"{path} has a heading but no row of {width} cells.")
        self.positions = class_columns(header, sample, layout.class_columns)
        if layout.label_column is not None and layout.class_columns is None:
            label = label_position(header, layout.label_column)
            self.positions = [i for i in self.positions if i != label]
        if not self.positions:
            raise ValueError(
                f"{path} has no columns of scores. Name them (`class_columns`, "
                "--class-columns FIRST:LAST)."
            )
        self.class_names = class_names_of(header, self.positions)
        classes = set(self.positions)
        self.others = [i for i in range(width) if i not in classes]
        self.column_names = tuple(header[i] for i in self.others)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows; a row with too few or too many cells has no scores."""
        rows = islice(records(self.path, self.delimiter), 1, None)
        start = 0
        while part := list(islice(rows, self.rows_per_chunk)):
            full = [self._is_full(row) for row in part]
            scores = self._scores(part, full)
            yield Chunk(start, scores, self._columns(part, full), (part, full))
            start += len(part)

    def write(self, path: Path, parts: Iterable[tuple[Chunk, ScoreArray]]) -> None:
        """Write all rows; the cells of other columns keep their bytes."""
        with path.open(
            "w", encoding="utf-8", errors="surrogateescape", newline=""
        ) as file:
            heading = next(records(self.path, self.delimiter))
            file.write(self.delimiter.join(heading.cells) + heading.end)
            for chunk, scores in parts:
                rows, full = chunk.raw
                kept = blank_rows(scores) | ~np.array(full)
                for row, values, is_kept in zip(
                    rows, scores.tolist(), kept.tolist(), strict=True
                ):
                    cells = row.cells
                    if not is_kept:
                        for i, value in zip(self.positions, values, strict=True):
                            cells[i] = repr(value)
                    file.write(self.delimiter.join(cells) + row.end)

    def _is_full(self, row: TextRow) -> bool:
        return len(row.cells) == len(self.header)

    def _scores(self, rows: Sequence[TextRow], full: Sequence[bool]) -> ScoreArray:
        C = len(self.positions)
        first, last = self.positions[0], self.positions[-1] + 1
        is_run = last - first == C
        texts = [
            row.cells[first:last] if is_run else [row.cells[i] for i in self.positions]
            for row, is_full in zip(rows, full, strict=True)
            if is_full
        ]
        scores = np.full((len(rows), C), np.nan)
        if texts:
            scores[np.array(full)] = _numbers(texts)
        return scores

    def _columns(
        self, rows: Sequence[TextRow], full: Sequence[bool]
    ) -> Mapping[str, Sequence[str]]:
        pairs = list(zip(rows, full, strict=True))
        return {
            self.header[i]: [text_of(r.cells[i]) if ok else "" for r, ok in pairs]
            for i in self.others
        }


def _numbers(texts: list[list[str]]) -> ScoreArray:
    """Return cells as numbers; NaN where a cell is none."""
    with suppress(ValueError):
        return np.array([[float(cell) for cell in row] for row in texts])
    return np.array([[_number(cell) for cell in row] for row in texts])


def _number(cell: str) -> float:
    with suppress(ValueError):
        return float(text_of(cell))
    return np.nan


class LongText(Table):
    """A CSV or TSV file with one row per image and class.

    A camera-trap data package (Camtrap DP) has such a file of observations. The file is
    read into memory, as the rows of an image may stand anywhere in it.
    """

    is_partial = True

    def __init__(
        self, path: Path, delimiter: str, header: list[str], columns: LongColumns
    ) -> None:
        self.path, self.delimiter, self.header = path, delimiter, header
        self.columns = columns
        is_camtrap = header[columns.score].lower() == "classificationprobability"
        self.format = "Camtrap DP observations" if is_camtrap else "long CSV"
        self.rows = list(records(path, delimiter))
        self._group()
        first = [r[0] for r in self.members]
        used = {columns.class_name, columns.score}
        self.others = [i for i in range(len(header)) if i not in used]
        self.column_names = tuple(header[i] for i in self.others)
        self._first = first

    def _group(self) -> None:
        """Number images and classes in the order in which they come."""
        keys: dict[tuple[str, ...], int] = {}
        names: dict[str, int] = {}
        self.members: list[list[int]] = []  # rows of each image
        self.cells: list[tuple[int, int, float]] = []  # row, class, score
        self.faults: dict[int, str] = {}
        for i, row in enumerate(self.rows[1:], start=1):
            if len(row.cells) != len(self.header):
                continue
            score = text_of(row.cells[self.columns.score])
            if not score:  # an observation by a person
                continue
            key = tuple(row.cells[k] for k in self.columns.keys)
            image = keys.setdefault(key, len(keys))
            if image == len(self.members):
                self.members.append([])
            name = text_of(row.cells[self.columns.class_name])
            c = names.setdefault(name, len(names))
            self.members[image].append(len(self.cells))
            self.cells.append((i, c, _number(score)))
        if not self.cells:
            raise ValueError(f"{self.path} has no row with a class and a score.")
        self.class_names = tuple(names)

    def chunks(self) -> Iterator[Chunk]:
        """Yield images, each with the scores of the classes that it has rows for."""
        step = self.rows_per_chunk
        for start in range(0, len(self.members), step):
            images = self.members[start : start + step]
            scores = np.full((len(images), len(self.class_names)), np.nan)
            for row, cells in zip(scores, images, strict=True):
                for j in cells:
                    _, c, score = self.cells[j]
                    # A class that an image has twice makes the image unusable.
                    row[c] = score if np.isnan(row[c]) else np.inf
            yield Chunk(start, scores, self._columns(images), images)

    def write(self, path: Path, parts: Iterable[tuple[Chunk, ScoreArray]]) -> None:
        """Write all rows in their order, with new scores."""
        texts: dict[int, str] = {}
        for chunk, scores in parts:
            for row, cells in zip(scores, chunk.raw, strict=True):
                for j in cells:
                    i, c, _ = self.cells[j]
                    if not np.isnan(row[c]):
                        texts[i] = repr(float(row[c]))
        with path.open(
            "w", encoding="utf-8", errors="surrogateescape", newline=""
        ) as file:
            for i, row in enumerate(self.rows):
                cells = list(row.cells)
                if i in texts:
                    cells[self.columns.score] = texts[i]
                file.write(self.delimiter.join(cells) + row.end)

    def _columns(self, images: list[list[int]]) -> Mapping[str, Sequence[str]]:
        rows = [self.rows[self.cells[cells[0]][0]] for cells in images]
        return {
            self.header[i]: [text_of(r.cells[i]) for r in rows] for i in self.others
        }
