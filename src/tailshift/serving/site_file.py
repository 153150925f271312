"""The state file: sites, their windows of logits and their estimates in SQLite."""

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tailshift.serving.site import (
    Digests,
    LogitRows,
    SiteState,
    StateError,
    StoredEstimate,
    Vector,
    Window,
    check_adapt,
    row_digests,
)
from tailshift.text import cut, printable

__all__ = ["SiteFile", "StateFileError", "site_row"]

_MAX_HISTORY = 200  # estimates per site
_VERSION = 1  # of the schema; 0 is that of tailshift 0.2, without checksums

_SCHEMA = """
CREATE TABLE IF NOT EXISTS model (class_names TEXT, probe BLOB);
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
_ADDED = (  # in version 1
    "ALTER TABLE windows ADD COLUMN digests BLOB",
    "ALTER TABLE sites ADD COLUMN checksum TEXT",
    "ALTER TABLE windows ADD COLUMN checksum TEXT",
    "ALTER TABLE history ADD COLUMN checksum TEXT",
)
_TABLES = {
    "sites": (
        "name, adapt, approved, num_seen, judged, estimate, low, high, p_value, "
        "strength, is_supported, reason, expected, doubt"
    ),
    "windows": "site, upto, logits, digests",
    "history": "site, num_seen, at, estimate, low, high",
}

SiteRow: TypeAlias = tuple[Any, ...]


class StateFileError(ValueError):
    """The file is damaged, held by another process, or of another model."""


class SiteFile:
    """The sites of one model in an SQLite file that one process holds.

    Each row has a checksum, and all rows are checked when the file is opened. The
    checksum finds damage; it is no signature.

    Attributes:
        lock: Held during each operation; hold it to make several of them one.

    Args:
        path: The file; None keeps everything in memory.
        class_names: One per class.
        probe: Logits of a fixed image, which identify the model, shape (C,).
        max_window: Number of images per site whose logits are kept.

    Raises:
        StateFileError: If the file cannot be used.
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
        with _naming(path):
            self._file = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=1.0,
                check_same_thread=False,
            )
        try:
            with _naming(path), self._file:
                _prepare(self._file)
                _check_model(self._file, path, "\n".join(class_names), probe)
            with _naming(path):
                self._check_rows()
                self._sites = [self._site(row) for row in self._rows("sites")]
        except StateFileError:
            self._file.close()
            raise

    def sites(self) -> list[SiteState]:
        """Return the sites that the file had when it was opened."""
        return self._sites

    def window(self, name: str) -> Window:
        """Return a site's latest images."""
        query = "SELECT logits, digests FROM windows WHERE site = ? ORDER BY upto"
        blocks = [self._block(*row) for row in self._all(query, name)]
        if not blocks:
            none = np.empty((0, self._num_classes), np.float32)
            return Window(none, np.empty(0, np.uint64))
        parts = [
            np.concatenate(part)[-self._max_window :]
            for part in zip(*blocks, strict=True)
        ]
        return Window(*parts)

    def history(self, name: str) -> list[StoredEstimate]:
        """Return a site's estimates, the oldest first."""
        query = (
            "SELECT num_seen, at, estimate, low, high FROM history WHERE site = ? "
            "ORDER BY num_seen"
        )
        rows = self._all(query, name)
        return [StoredEstimate(*row[:2], *map(_as_vector, row[2:])) for row in rows]

    def write(
        self, rows: Sequence[SiteRow], blocks: Mapping[str, Sequence[Window]]
    ) -> None:
        """Write rows of :func:`site_row`, and new images by site, or nothing.

        Raises:
            sqlite3.Error: If the file cannot be written.
        """
        num_seen = {row[0]: row[3] for row in rows}
        with self.lock, self._file:  # one transaction
            for row in rows:
                self._insert("sites", row)
            for name, windows in blocks.items():
                if windows:
                    self._extend_window(name, num_seen[name], windows)

    def _extend_window(self, name: str, upto: int, blocks: Sequence[Window]) -> None:
        logits, digests = (np.concatenate(part) for part in zip(*blocks, strict=True))
        self._insert("windows", (name, upto, logits.tobytes(), digests.tobytes()))
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
            self._insert("history", (site.name, num_seen, time.time(), *blobs))
            self._file.execute(oldest, (site.name, site.name, _MAX_HISTORY))

    def delete(self, name: str) -> None:
        """Delete a site with its window and its history, or nothing.

        Raises:
            sqlite3.Error: If the file cannot be written.
        """
        with self.lock, self._file:
            for table, key in (("sites", "name"), ("windows", "site")):
                self._file.execute(f"DELETE FROM {table} WHERE {key} = ?", (name,))
            self._file.execute("DELETE FROM history WHERE site = ?", (name,))

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self._file.close()

    def _insert(self, table: str, row: SiteRow) -> None:
        places = ", ".join("?" * (len(row) + 1))
        query = (
            f"INSERT OR REPLACE INTO {table} ({_TABLES[table]}, checksum) "
            f"VALUES ({places})"
        )
        self._file.execute(query, (*row, _checksum(row)))

    def _rows(self, table: str) -> Iterator[SiteRow]:
        """Yield the rows of a table, each checked against its checksum."""
        query = f"SELECT {_TABLES[table]}, checksum FROM {table}"
        for *row, checksum in self._file.execute(query):
            if checksum != _checksum(row):
                raise ValueError(f"a row of {table} has another checksum")
            yield tuple(row)

    def _check_rows(self) -> None:
        found = self._file.execute("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise ValueError(str(found[0]))
        [(version,)] = self._file.execute("PRAGMA user_version").fetchall()
        if version < _VERSION:
            self._add_checksums()
        for row in self._rows("windows"):
            self._block(*row[2:])
        for row in self._rows("history"):
            _check(isfinite(row[2]), "a time is not finite")
            for blob in row[3:]:
                self._vector(blob, "estimate", is_prior=False)

    def _add_checksums(self) -> None:
        """Add the checksums that version 0 does not have."""
        with self._file:
            for table, names in _TABLES.items():
                for row in self._file.execute(
                    f"SELECT {names} FROM {table}"
                ).fetchall():
                    self._insert(table, row)
            self._file.execute(f"PRAGMA user_version = {_VERSION}")

    def _block(self, logits: bytes, digests: bytes | None) -> Window:
        """Return a block of a window; blocks of version 0 have no digests."""
        rows = np.frombuffer(logits, np.float32).reshape(-1, self._num_classes)
        _check(bool(np.isfinite(rows).all()), "a logit is not finite")
        found: Digests = (
            row_digests(rows) if digests is None else np.frombuffer(digests, np.uint64)
        )
        _check(len(found) == len(rows), "digests are missing")
        return Window(rows, found)

    def _site(self, row: SiteRow) -> SiteState:
        name, adapt, approved, num_seen, judged, estimate, low, high, *rest = row
        p_value, strength, is_supported, reason, expected, doubt = rest
        for text in (name, reason, doubt):
            _check(isinstance(text, str), "a text is not a text")
        for count in (num_seen, judged):
            _check(isinstance(count, int) and count >= 0, "a count is negative")
        for value in (strength, p_value or 0.0):
            _check(
                isinstance(value, float) and isfinite(value), "a value is not finite"
            )
        return SiteState(
            name=name,
            adapt=check_adapt(adapt),
            approved=self._vector(approved, "approved prior"),
            num_seen=num_seen,
            judged=judged,
            estimate=self._vector(estimate, "estimate"),
            low=self._vector(low, "interval", is_prior=False),
            high=self._vector(high, "interval", is_prior=False),
            p_value=p_value,
            strength=strength,
            is_supported=bool(is_supported),
            reason=reason,
            expected=None if expected is None else _expected(expected),
            doubt=doubt,
            is_stale=True,
        )

    def _vector(
        self, blob: bytes | None, what: str, *, is_prior: bool = True
    ) -> Vector | None:
        if blob is None:
            return None
        size = 8 * self._num_classes
        _check(len(blob) == size, f"{what} of {len(blob)} bytes instead of {size}")
        vector = _as_vector(blob)
        is_sound = bool(np.isfinite(vector).all()) and vector.min() >= 0
        if is_prior:
            is_sound = is_sound and abs(vector.sum() - 1) < 1e-3
        _check(is_sound, f"{what} is not a probability vector")
        return vector

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            with self.lock:
                return self._file.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StateError(f"The state cannot be read ({error}).") from None


def site_row(site: SiteState) -> SiteRow:
    """Return a site as a row of the file."""
    vectors = (site.approved, site.estimate, site.low, site.high, site.expected)
    blobs = (None if v is None else v.tobytes() for v in vectors)
    approved, *found, expected = blobs
    p_value = None if site.p_value is None else float(site.p_value)
    return (
        *(site.name, site.adapt, approved, int(site.num_seen), int(site.judged)),
        *(*found, p_value, float(site.strength), int(site.is_supported)),
        *(site.reason, expected, site.doubt),
    )


def _checksum(row: Sequence[Any]) -> str:
    """Return a checksum of a row, which SQLite returns with the same types."""
    found = blake2b(digest_size=16)
    for value in row:
        content = value if isinstance(value, bytes) else repr(value).encode()
        found.update(b"%d:%b" % (len(content), content))
    return found.hexdigest()


def _as_vector(blob: bytes) -> Vector:
    return np.frombuffer(blob, np.float64)


def _expected(blob: bytes) -> Vector:
    found = _as_vector(blob).reshape(2, 3)
    _check(bool(np.isfinite(found).all()), "an expected accuracy is not finite")
    return found


def _check(is_sound: bool, fault: str) -> None:
    if not is_sound:
        raise ValueError(fault)


def _prepare(file: sqlite3.Connection) -> None:
    """Create the tables, and add the columns that a file of version 0 lacks."""
    file.execute("PRAGMA locking_mode = EXCLUSIVE")
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = NORMAL")
    file.executescript(_SCHEMA)
    columns = {row[1] for row in file.execute("PRAGMA table_info(sites)")}
    if "checksum" not in columns:
        file.execute("BEGIN")  # all of them or none
        for statement in _ADDED:
            file.execute(statement)
        file.commit()


@contextmanager
def _naming(path: Path | None) -> Iterator[None]:
    """Say in one sentence why a file cannot be used."""
    try:
        yield
    except StateFileError:
        raise
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        if "locked" in str(error):
            raise StateFileError(
                f"`--state {path}` is in use by another process. Stop it, or name "
                "another file."
            ) from None
        reason = cut(printable(" ".join(str(error).split())))
        raise StateFileError(
            f"`--state {path}` is damaged or not a state file ({reason}). Restore a "
            "copy, or name a new file."
        ) from None


def _check_model(
    file: sqlite3.Connection, path: Path | None, names: str, probe: LogitRows
) -> None:
    """Reject the state of a model with other classes or other weights."""
    known = file.execute("SELECT class_names, probe FROM model").fetchone()
    if known is None:
        query = "INSERT INTO model VALUES (?, ?)"
        file.execute(query, (names, probe.tobytes()))
        return
    logits = np.frombuffer(known[1], np.float32)
    is_same = known[0] == names and logits.shape == probe.shape
    if not (is_same and np.allclose(logits, probe, rtol=1e-3, atol=1e-2)):
        raise StateFileError(
            f"`--state {path}` belongs to a model with other classes or weights. Name "
            "a new file."
        )
