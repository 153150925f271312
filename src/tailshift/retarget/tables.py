"""Files of predictions: one interface to read scores and to write them back."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tailshift.files import check_regular
from tailshift.retarget.scores import ScoreArray, ScoreKind

CHUNK_ELEMENTS = 2**19  # 4 MB of float64 scores: Parquet files stay below 1 GB
HEAD_BYTES = 4096

FilePath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a table.

    Attributes:
        start: Number of rows before these.
        scores: Shape (N, C); NaN where a score is not given or cannot be read.
        columns: Texts of the untouched columns, by name, shape (N,) each.
        raw: What the table needs to write these rows again.
    """

    start: int
    scores: ScoreArray
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    raw: Any = None


class Table(ABC):
    """Rows of scores in a file.

    Attributes:
        class_names: One per class, in the order of the scores.
        format: Name of the format, for messages.
        column_names: Names of the columns that stay untouched.
        is_partial: Whether a row may have the largest scores only.
        kind: Kind of the scores, if the format says.
        label_column: Name of the column of labels, if there is one.
    """

    class_names: tuple[str, ...]
    format: str
    column_names: tuple[str, ...] = ()
    is_partial: bool = False
    kind: ScoreKind | None = None

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows, some at a time; each call starts from the first row."""

    @abstractmethod
    def write(self, path: Path, parts: Iterable[tuple[Chunk, ScoreArray]]) -> None:
        """Write the same file with other scores.

        Args:
            path: File to write.
            parts: Each chunk, in order, and its new scores (N, C). A row of NaN keeps
                what it had.
        """

    @property
    def rows_per_chunk(self) -> int:
        """Number of rows that are read at a time."""
        return max(1, CHUNK_ELEMENTS // max(1, len(self.class_names)))


class TableLayout(NamedTuple):
    """What a user says about a file that its content does not tell.

    Attributes:
        class_columns: ``"FIRST:LAST"``, names between commas or a pattern such as
            ``"prob_*"``, for wide tables; found by content if None.
        label_column: Column of labels; it is not a class.
    """

    class_columns: str | None = None
    label_column: str | None = None


def open_table(path: FilePath, layout: TableLayout = TableLayout()) -> Table:  # noqa: B008
    """Open a file of predictions; its content tells the format, not its name.

    Args:
        path: CSV, TSV, Parquet, NumPy, safetensors, SpeciesNet, MegaDetector or
            Timelapse JSON, or observations of a Camtrap DP.
        layout: What the content does not tell.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no predictions file {path}.")
    check_regular(path)
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head.strip():
        raise ValueError(f"{path} is empty: it holds no predictions.")
    if head.startswith(b"PAR1"):
        from tailshift.retarget.parquet import ParquetTable

        return ParquetTable(path, layout)
    if head.startswith((b"PK\x03\x04", b"\x93NUMPY")) or head[8:9] == b"{":
        from tailshift.retarget.arrays import ArrayTable

        return ArrayTable(path)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        from tailshift.retarget.json_files import open_json

        return open_json(path)
    from tailshift.retarget.delimited import open_delimited

    return open_delimited(path, layout)
