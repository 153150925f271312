"""The state file: one model, one process, and no damage that goes unnoticed."""

import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailshift.serving.site_file import StateFileError, _checksum
from tailshift.serving.sites import Sites

NAMES = ("kea", "kiwi", "tui")
PROBE = np.array([1.0, 2.0, 3.0], np.float32)
SOURCE = np.array([0.6, 0.3, 0.1])

SCHEMA_0 = """
CREATE TABLE model (class_names TEXT, probe BLOB);
CREATE TABLE sites (
    name TEXT PRIMARY KEY, adapt TEXT NOT NULL, approved BLOB,
    num_seen INTEGER NOT NULL DEFAULT 0, judged INTEGER NOT NULL DEFAULT 0,
    estimate BLOB, low BLOB, high BLOB, p_value REAL, strength REAL NOT NULL,
    is_supported INTEGER NOT NULL, reason TEXT NOT NULL, expected BLOB,
    doubt TEXT NOT NULL
);
CREATE TABLE windows (
    site TEXT NOT NULL, upto INTEGER NOT NULL, logits BLOB NOT NULL,
    PRIMARY KEY (site, upto)
) WITHOUT ROWID;
CREATE TABLE history (
    site TEXT NOT NULL, num_seen INTEGER NOT NULL, at REAL NOT NULL,
    estimate BLOB NOT NULL, low BLOB NOT NULL, high BLOB NOT NULL,
    PRIMARY KEY (site, num_seen)
) WITHOUT ROWID;
"""


def _open(path: Path | None = None, **settings: Any) -> Sites:
    made: dict[str, Any] = {"class_names": NAMES, "source_prior": SOURCE}
    return Sites(path, **(made | {"probe": PROBE} | settings))


def test_file__is_of_one_model_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "sites.sqlite"
    first = _open(path)
    with pytest.raises(ValueError, match="state") as held:
        _open(path)
    first.close()
    with pytest.raises(ValueError, match="state") as other:
        _open(path, probe=PROBE + 1)
    _open(path, probe=PROBE + 1e-4).close()
    (tmp_path / "text.sqlite").write_text("no database" * 100)
    with pytest.raises(ValueError, match="state") as text:
        _open(tmp_path / "text.sqlite")
    assert [str(found.value) for found in (held, other, text)] == [
        f"`--state {path}` is in use by another process. Stop it, or name another "
        "file.",
        f"`--state {path}` belongs to a model with other classes or weights. Name a "
        "new file.",
        f"`--state {tmp_path / 'text.sqlite'}` is damaged or not a state file (file is "
        "not a database). Restore a copy, or name a new file.",
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file with two sites, one of them approved."""
    path = tmp_path / "sites.sqlite"
    sites = _open(path)
    rng = np.random.default_rng(0)
    for name in ("hill", "lake"):
        sites.record(name, rng.normal(size=(40, 3)).astype(np.float32))
        site = sites.get(name)
        site.estimate, site.p_value, site.judged = SOURCE[::-1].copy(), 0.5, 40
        site.low, site.high = np.zeros(3), np.ones(3)
        site.expected = np.full((2, 3), 0.5)
        window = site.pending[:]
        sites.approve(name, "estimate")
        sites._file._extend_window(name, 40, window)
        sites._file.add_to_history(site, 40)
    sites.close()
    return path


def _change(path: Path, query: str, *values: Any) -> None:
    file = sqlite3.connect(path)
    with file:
        file.execute(query, values)
    file.close()


VALUES = {
    "nan": np.full(3, np.nan),
    "zeros": np.zeros(3),
    "negative": np.array([-0.5, 1.0, 0.5]),
    "other length": np.array([0.5, 0.5]),
}


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("value", VALUES)
def test_open__rejects_an_approved_prior_that_is_none(
    path: Path, value: str, is_sealed: bool
) -> None:
    """Whether its checksum is that of the file or was computed again."""
    blob = VALUES[value].tobytes()
    _change(path, "UPDATE sites SET approved = ?", blob)
    if is_sealed:
        file = sqlite3.connect(path)
        for row in file.execute("SELECT * FROM sites").fetchall():
            query = "UPDATE sites SET checksum = ? WHERE name = ?"
            file.execute(query, (_checksum(row[:-1]), row[0]))
        file.commit()
        file.close()
    with pytest.raises(StateFileError, match="is damaged or not a state file") as error:
        _open(path)
    reason = "approved prior" if is_sealed else "checksum"
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "query",
    [
        "UPDATE sites SET num_seen = 'x'",
        "UPDATE sites SET expected = x'00'",
        "UPDATE sites SET adapt = 'always'",
        "UPDATE sites SET checksum = NULL",
        "UPDATE windows SET logits = x'0000'",
        "UPDATE windows SET digests = x'0000'",
        "UPDATE history SET at = 'now'",
        "UPDATE model SET probe = NULL",
        "UPDATE model SET probe = x'00'",
        "DROP TABLE model",
        "ALTER TABLE sites DROP COLUMN doubt",
    ],
)
def test_open__rejects_changed_rows(path: Path, query: str) -> None:
    _change(path, query)
    if query.startswith("DROP"):  # a new table holds the model of now
        _open(path).close()
        return
    with pytest.raises(StateFileError):
        _open(path)


def test_open__of_random_damage_works_or_ends_in_a_sentence(path: Path) -> None:
    content, rng = path.read_bytes(), random.Random(0)
    outcomes = {"open": 0, "rejected": 0}
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 4, 40))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        fault, sites = "", None
        try:
            sites = _open(path)
        except StateFileError as error:
            fault = str(error)
        assert "\n" not in fault
        if sites is None:
            outcomes["rejected"] += 1
            continue
        for name in sites.names():
            assert len(sites.window(name)) in (0, 40)
            assert sites.mix(name).shares.sum() == pytest.approx(1)
            sites.history(name)
        sites.close()
        outcomes["open"] += 1
    assert min(outcomes.values()) > 10


def test_open__reads_a_file_of_version_0_2(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    file = sqlite3.connect(path)
    file.executescript(SCHEMA_0)
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    prior, blob = SOURCE[::-1].copy(), SOURCE[::-1].tobytes()
    with file:
        query = "INSERT INTO model VALUES (?, ?)"
        file.execute(query, ("\n".join(NAMES), PROBE.tobytes()))
        site = (
            "hill",
            "approve",
            blob,
            60,
            60,
            blob,
            blob,
            blob,
            0.5,
            1.0,
            1,
            "",
            None,
        )
        file.execute(f"INSERT INTO sites VALUES ({', '.join('?' * 14)})", (*site, ""))
        query = "INSERT INTO windows VALUES (?, ?, ?)"
        file.execute(query, ("hill", 60, rows.tobytes()))
        query = "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?)"
        file.execute(query, ("hill", 60, 1.0, blob, blob, blob))
    file.close()
    for _ in range(2):  # as it was, and with the checksums that were added
        sites = _open(path)
        np.testing.assert_array_equal(sites.mix("hill").shares, prior)
        np.testing.assert_array_equal(sites.window("hill"), rows)
        assert [found.num_seen for found in sites.history("hill")] == [60]
        sites.close()
    _change(path, "UPDATE windows SET logits = zeroblob(720)")
    with pytest.raises(StateFileError, match="checksum"):
        _open(path)
