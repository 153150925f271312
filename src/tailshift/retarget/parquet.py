"""Parquet tables of scores, streamed so that memory stays bounded."""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailshift.retarget.columns import class_columns, class_names_of, label_position
from tailshift.retarget.scores import ScoreArray, blank_rows
from tailshift.retarget.tables import Chunk, Table, TableLayout

_SAMPLE_ROWS = 200


class LazyColumns(Mapping[str, Sequence[str]]):
    """Columns of a batch as texts, converted when they are asked for.

    Args:
        batch: A pyarrow record batch.
        names: The columns.
    """

    def __init__(self, batch: Any, names: Sequence[str]) -> None:
        self._batch, self._names = batch, names

    def __getitem__(self, name: str) -> Sequence[str]:
        if name not in self._names:
            raise KeyError(name)
        values = self._batch.column(name).to_pylist()
        return ["" if value is None else str(value) for value in values]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ParquetTable(Table):
    """A Parquet file with one column per class."""

    format = "Parquet"

    def __init__(self, path: Path, layout: TableLayout) -> None:
        self.path = path
        self.arrow, self.parquet = arrow("pyarrow"), arrow("pyarrow.parquet")
        file = self._open()
        self.schema = file.schema_arrow
        self.num_rows = file.metadata.num_rows
        header = self.schema.names
        is_number = [self._is_float(i) for i in range(len(header))]
        sample = self._sample(file, header, is_number)
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
        self.column_names = tuple(n for i, n in enumerate(header) if i not in classes)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows, batch by batch."""
        start = 0
        for batch in self._batches():
            columns = [batch.column(i) for i in self.positions]
            scores = np.empty((batch.num_rows, len(columns)))
            for c, column in enumerate(columns):
                scores[:, c] = column.to_numpy(zero_copy_only=False)
            yield Chunk(start, scores, LazyColumns(batch, self.column_names), batch)
            start += batch.num_rows

    def write(self, path: Path, parts: Iterable[tuple[Chunk, ScoreArray]]) -> None:
        """Write the same columns, with new scores in the type that they had."""
        with self.parquet.ParquetWriter(path, self.schema) as writer:
            for chunk, scores in parts:
                writer.write_batch(self._replaced(chunk, scores))

    def _replaced(self, chunk: Chunk, scores: ScoreArray) -> Any:
        columns = list(chunk.raw.columns)
        kept = blank_rows(scores)
        if kept.any():
            scores = np.where(kept[:, None], chunk.scores, scores)
        by_class = np.ascontiguousarray(scores.T)
        for c, i in enumerate(self.positions):
            kind = self.schema.field(i).type
            column = self.arrow.array(by_class[c])
            columns[i] = (
                column if column.type == kind else column.cast(kind, safe=False)
            )
        return self.arrow.RecordBatch.from_arrays(columns, schema=self.schema)

    def _batches(self) -> Iterator[Any]:
        try:
            file = self._open()
            yield from file.iter_batches(self.rows_per_chunk, use_threads=False)
        except (OSError, self.arrow.ArrowException) as error:
            raise ValueError(
                f"{self.path} cannot be read ({_first_line(error)})."
            ) from None

    def _open(self) -> Any:
        try:
            return self.parquet.ParquetFile(
                self.path, pre_buffer=False, memory_map=False, buffer_size=2**16
            )
        except (OSError, self.arrow.ArrowException) as error:
            raise ValueError(
                f"{self.path} is no Parquet table or is cut short "
                f"({_first_line(error)})."
            ) from None

    def _is_float(self, i: int) -> bool:
        return bool(arrow("pyarrow.types").is_floating(self.schema.field(i).type))

    def _sample(
        self, file: Any, header: Sequence[str], is_number: Sequence[bool]
    ) -> list[list[str]]:
        """Return the first rows as texts; columns that are no floats are left out."""
        try:
            batch = next(file.iter_batches(_SAMPLE_ROWS, use_threads=False), None)
        except (OSError, self.arrow.ArrowException) as error:
            raise ValueError(
                f"{self.path} cannot be read ({_first_line(error)})."
            ) from None
        if batch is None:
            raise ValueError(f"{self.path} has no row.")
        columns = [
            batch.column(i).to_pylist() if is_number[i] else [""] * batch.num_rows
            for i in range(len(header))
        ]
        return [[repr(cell) for cell in row] for row in zip(*columns, strict=True)]


def arrow(module: str) -> Any:
    """Return a module of pyarrow, which is optional."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            "Parquet tables need the package pyarrow, which is not installed. Install "
            "it with `pip install tailshift[datasets]`."
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
