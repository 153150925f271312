"""The state file: sites, their windows of logits and their estimates in SQLite."""

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tailshift.serving.site import (
    Judgement,
    LogitRows,
    SiteState,
    Vector,
    check_adapt,
)

_MAX_HISTORY = 200  # estimates per site

_SCHEMA = """CREATE TABLE IF NOT EXISTS model (class_names TEXT, probe BLOB);
CREATE TABLE IF NOT EXISTS sites (
    name TEXT PRIMARY KEY, adapt TEXT NOT NULL, approved BLOB,
    num_seen INTEGER NOT NULL DEFAULT 0, judged INTEGER NOT NULL DEFAULT 0,
    estimate BLOB, low BLOB, high BLOB, p_value REAL, strength REAL NOT NULL,
    is_supported INTEGER NOT NULL, reason TEXT NOT NULL, expected BLOB,
    doubt TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS windows (
    site TEXT NOT NULL, upto INTEGER NOT NULL, logits BLOB NOT NULL,
    PRIMARY KEY (site, upto)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (
    site TEXT NOT NULL, num_seen INTEGER NOT NULL, at REAL NOT NULL,
    estimate BLOB NOT NULL, low BLOB NOT NULL, high BLOB NOT NULL,
    PRIMARY KEY (site, num_seen)
) WITHOUT ROWID;
"""


SiteRow = tuple[Any, ...]


class SiteFile:
    """The sites of one model in an SQLite file that one process holds.

    Attributes:
        lock: Held during each operation; hold it to make several of them one.

    Args:
        path: The file; None keeps everything in memory.
        class_names: One per class.
        probe: Logits of a fixed image, which identify the model, shape (C,).
        max_window: Number of images per site whose logits are kept.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        class_names: tuple[str, ...],
        probe: LogitRows,
        max_window: int,
    ) -> None:
        self.lock = threading.RLock()
        self._num_classes, self._max_window = len(class_names), max_window
        self._file = _opened(path, class_names, probe)

    def sites(self) -> Iterator[SiteState]:
        """Read all sites."""
        for row in self._all("SELECT * FROM sites"):
            name, adapt, approved, num_seen, judged, *blobs = row[:8]
            estimate, low, high = map(self._vector, blobs)
            yield SiteState(
                name=name,
                adapt=check_adapt(adapt),
                approved=self._vector(approved),
                num_seen=num_seen,
                judged=judged,
                estimate=estimate,
                low=low,
                high=high,
                p_value=row[8],
                strength=row[9],
                is_supported=bool(row[10]),
                reason=row[11],
                expected=None if row[12] is None else _as_vector(row[12]).reshape(2, 3),
                doubt=row[13],
                is_stale=True,
            )

    def window(self, name: str) -> LogitRows:
        """Return the logits of a site's latest images, shape (N, C)."""
        query = "SELECT logits FROM windows WHERE site = ? ORDER BY upto"
        blobs = [blob for (blob,) in self._all(query, name)]
        rows = np.frombuffer(b"".join(blobs), np.float32)
        return rows.reshape(-1, self._num_classes)[-self._max_window :]

    def history(self, name: str) -> list[Judgement]:
        """Return a site's estimates, the oldest first."""
        query = (
            "SELECT num_seen, at, estimate, low, high FROM history WHERE site = ? "
            "ORDER BY num_seen"
        )
        rows = self._all(query, name)
        return [Judgement(*row[:2], *map(_as_vector, row[2:])) for row in rows]

    def write(
        self, rows: Sequence[SiteRow], blocks: Mapping[str, list[LogitRows]]
    ) -> None:
        """Write rows of :func:`site_row`, and new logits by site, or nothing.

        Raises:
            sqlite3.Error: If the file cannot be written.
        """
        num_seen = {row[0]: row[3] for row in rows}
        with self.lock, self._file:  # one transaction
            places = ", ".join("?" * 14)
            query = f"INSERT OR REPLACE INTO sites VALUES ({places})"
            self._file.executemany(query, rows)
            for name, logits in blocks.items():
                if logits:
                    self._extend_window(name, num_seen[name], np.concatenate(logits))

    def _extend_window(self, name: str, upto: int, logits: LogitRows) -> None:
        query = "INSERT OR REPLACE INTO windows VALUES (?, ?, ?)"
        self._file.execute(query, (name, upto, logits.tobytes()))
        query = "DELETE FROM windows WHERE site = ? AND upto <= ?"
        self._file.execute(query, (name, upto - self._max_window))

    def add_to_history(self, site: SiteState, num_seen: int) -> None:
        """Write a site's estimate to its history, and delete the oldest ones."""
        vectors = (site.estimate, site.low, site.high)
        blobs = [vector.tobytes() for vector in vectors if vector is not None]
        oldest = (
            "DELETE FROM history WHERE site = ? AND num_seen NOT IN (SELECT num_seen "
            "FROM history WHERE site = ? ORDER BY num_seen DESC LIMIT ?)"
        )
        with self.lock, self._file:
            query = "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?)"
            self._file.execute(query, (site.name, num_seen, time.time(), *blobs))
            self._file.execute(oldest, (site.name, site.name, _MAX_HISTORY))

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self._file.close()

    def _vector(self, blob: bytes | None) -> Vector | None:
        if blob is None:
            return None
        if len(blob) != 8 * self._num_classes:
            raise ValueError(
                f"`state` must hold mixes of {self._num_classes} classes, but "
                f"holds one of {len(blob)} bytes. Name a new file."
            )
        return _as_vector(blob)

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.lock:
            return self._file.execute(query, values).fetchall()


def site_row(site: SiteState) -> SiteRow:
    """Return a site as a row of the file."""
    vectors = (site.approved, site.estimate, site.low, site.high, site.expected)
    blobs = (None if v is None else v.tobytes() for v in vectors)
    approved, *found, expected = blobs
    seen = (site.num_seen, site.judged)
    verdict = (site.p_value, site.strength, site.is_supported, site.reason)
    outlook = (expected, site.doubt)
    return site.name, site.adapt, approved, *seen, *found, *verdict, *outlook


def _as_vector(blob: bytes) -> Vector:
    return np.frombuffer(blob, np.float64)


def _opened(
    path: Path | None, class_names: tuple[str, ...], probe: LogitRows
) -> sqlite3.Connection:
    """Return the database, with its tables, held by this process alone."""
    name = ":memory:" if path is None else path
    with _naming(path):
        file = sqlite3.connect(name, timeout=1.0, check_same_thread=False)
    try:
        with _naming(path):
            file.execute("PRAGMA locking_mode = EXCLUSIVE")
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = NORMAL")
            file.executescript(_SCHEMA)
            with file:
                _check_model(file, path, "\n".join(class_names), probe)
    except ValueError:
        file.close()
        raise
    return file


@contextmanager
def _naming(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        is_held = "locked" in str(error)
        came = "is held by another process" if is_held else f"cannot be used ({error})"
        raise ValueError(
            f"`state` must be a file of `tailshift serve` or a new one, but {path} "
            f"{came}. Name another."
        ) from None


def _check_model(
    file: sqlite3.Connection, path: Path | None, names: str, probe: LogitRows
) -> None:
    """Refuse the state of a model with other classes or other answers."""
    known = file.execute("SELECT class_names, probe FROM model").fetchone()
    if known is None:
        query = "INSERT INTO model VALUES (?, ?)"
        file.execute(query, (names, probe.tobytes()))
        return
    logits = np.frombuffer(known[1], np.float32)
    is_same = known[0] == names and np.allclose(logits, probe, rtol=1e-3, atol=1e-2)
    if not is_same:
        raise ValueError(
            f"`state` must be of the same model, but {path} was kept for one with "
            "other classes or weights. Name a new file."
        )
