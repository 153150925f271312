"""Sites: the class mix of each, estimated as its images come in and kept in SQLite."""

import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tailshift.checks import ArrayLike
from tailshift.estimators import (
    Adaptation,
    Certificate,
    FewSamplesWarning,
    MAPEstimator,
    OnlineEstimator,
    adapt,
    certify,
)
from tailshift.estimators.map_em import STRENGTHS
from tailshift.estimators.online import HALF_LIVES
from tailshift.predictions import Predictions
from tailshift.priors import from_counts
from tailshift.registry import did_you_mean

Adapt: TypeAlias = Literal["auto", "approve", "never"]
"""Whose word changes a site's mix: the estimate's, a person's, or nobody's."""

MixFrom: TypeAlias = Literal["training", "book", "approved", "estimate", "request"]
"""Where a mix comes from that an answer is for."""

Vector: TypeAlias = NDArray[np.float64]
LogitRows: TypeAlias = NDArray[np.float32]

FEWEST = 50  # images, before a site's stream is judged
MOST_WINDOW = 2**23  # logits of a site that are kept: 32 MB
MOST_HISTORY = 200  # judgements of a site that are kept
JUDGED_HALF_LIVES = 2  # of a window, which are tested for a shift
CERTIFICATE_REPLICATES = 100  # as few as a test at the level above needs
MOVED = 0.1  # total variation from which an approved mix counts as left

SCHEMA = """
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


class Mix(NamedTuple):
    """A class mix to answer for, shape (C,), and where it comes from."""

    shares: Vector
    origin: MixFrom


class Judgement(NamedTuple):
    """An estimate with its 95 % band, after a number of images, at a time."""

    num_seen: int
    at: float
    estimate: Vector
    low: Vector
    high: Vector


@dataclass
class SiteState:
    """What is known of a site; its window of logits is in the database."""

    name: str
    """Name of the site, as requests give it."""

    adapt: Adapt
    """Whose word changes the mix."""

    approved: Vector | None = None
    """Mix that a person has approved, shape (C,)."""

    num_seen: int = 0
    """Number of images that have come."""

    judged: int = 0
    """Number of images at the last test for a shift."""

    estimate: Vector | None = None
    """Mix after the last refresh, shape (C,)."""

    low: Vector | None = None
    """Lower end of its 95 % band at the last test, shape (C,)."""

    high: Vector | None = None
    """Upper end of it."""

    p_value: float | None = None
    """P-value of the last test for a shift."""

    strength: float = max(STRENGTHS)
    """How much the estimate is drawn to a tilt; chosen at the last test."""

    is_supported: bool = False
    """Whether the data supported the estimate at the last test."""

    reason: str = ""
    """Why, in a sentence."""

    expected: Vector | None = None
    """Expected accuracy and its 95 % interval, shape (2, 3): as trained, and for the
    estimate; None if nobody can tell."""

    doubt: str = ""
    """Why nobody can tell, in a sentence."""

    pending: list[LogitRows] = field(default_factory=list)
    """Logits that are not yet in the database."""

    is_stale: bool = False
    """Whether the window holds logits that the estimate has not seen."""

    is_changed: bool = False
    """Whether the database does not have it as it is."""


class UnknownSiteError(ValueError):
    """No image of the site has come, and no book names it."""


class TooManySitesError(ValueError):
    """Another site would be more than are kept."""


class NoEstimateError(ValueError):
    """Nothing has been estimated of the site."""


class Sites:
    """All sites of a server: their streams, their mixes and whose word changes them.

    `record` and `mix` take microseconds. What takes longer is for other threads:
    `flush` writes what has come, so that a restart loses no more than what came after
    it; `refresh` flushes and estimates, and is called by one thread at a time.

    Args:
        path: SQLite file; None keeps all in memory.
        class_names: One for each class.
        source_prior: :math:`p_s` of the training data, shape (C,).
        probe: Logits of a fixed picture, which tell another model's file, shape (C,).
        held_out: Labelled logits of the same model; None estimates nothing.
        book: Mixes of sites that are known beforehand, each (C,).
        adapt: Whose word changes the mix of a new site.
        half_life: Number of images after which one counts half.
        most_sites: Number of sites that are kept.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        class_names: tuple[str, ...],
        source_prior: Vector,
        probe: LogitRows,
        held_out: Predictions | None = None,
        book: Mapping[str, Vector] | None = None,
        adapt: Adapt = "approve",
        half_life: float = 1000.0,
        most_sites: int = 1000,
    ) -> None:
        self.class_names, self.source_prior = class_names, source_prior
        self.default_adapt, self.most_sites = check_adapt(adapt), most_sites
        self.fault = ""
        self._book = {} if book is None else dict(book)
        self._lock, self._file_lock = threading.RLock(), threading.RLock()
        longest = max(1, MOST_WINDOW // len(class_names))
        self._half_life = min(half_life, longest / HALF_LIVES)
        self._longest = int(HALF_LIVES * self._half_life)
        self._judge = None if held_out is None else _Judge(held_out, self._half_life)
        self._file = _opened(path, class_names, probe)
        self._sites = {site.name: site for site in self._read_sites()}

    @property
    def is_estimating(self) -> bool:
        """Whether there are held-out logits to calibrate on."""
        return self._judge is not None

    @property
    def half_life(self) -> float:
        """Number of images after which one counts half; less if classes are many."""
        return self._half_life

    def names(self) -> list[str]:
        """Return the names of the sites whose images have come or that a book names."""
        with self._lock:
            return sorted({*self._sites, *self._book})

    def get(self, name: str) -> SiteState:
        """Return a site.

        Raises:
            UnknownSiteError: If nothing is known of it.
        """
        with self._lock:
            if name not in self._sites and name not in self._book:
                hint = did_you_mean(name, self.names()) or "."
                raise UnknownSiteError(
                    "`site` must be one whose images have come or that the book names, "
                    f"but {name!r} is not{hint}"
                )
            return self._sites.get(name) or SiteState(name, self.default_adapt)

    def mix(self, name: str) -> Mix:
        """Return the mix to answer for at a site that may be new."""
        with self._lock:
            site = self._sites.get(name) or SiteState(name, self.default_adapt)
            if site.adapt == "auto" and site.estimate is not None and site.is_supported:
                return Mix(site.estimate, "estimate")
            if site.adapt == "approve" and site.approved is not None:
                return Mix(site.approved, "approved")
        if name in self._book:
            return Mix(self._book[name], "book")
        return Mix(self.source_prior, "training")

    def check_room(self, name: str) -> None:
        """Refuse a new site if there are as many as are kept."""
        with self._lock:
            if name not in self._sites and len(self._sites) >= self.most_sites:
                raise TooManySitesError(
                    f"`site` must be one of the {self.most_sites:,} that are known "
                    "already, the most that are kept, but is new."
                )

    def record(self, name: str, logits: LogitRows) -> None:
        """Take logits (N, C) of a site's images, which carry the trained prior."""
        with self._lock:
            site = self._own(name)
            site.num_seen += len(logits)
            site.pending.append(logits[-self._longest :])
            waiting = sum(map(len, site.pending))
            while waiting - len(site.pending[0]) >= self._longest:
                waiting -= len(site.pending.pop(0))

    def approve(self, name: str, origin: Literal["estimate", "training"]) -> None:
        """Answer for the estimate of now, or for the training mix, until told again."""
        with self._lock:
            known = self.get(name)
            mix = known.estimate if origin == "estimate" else self.source_prior
            if mix is None:
                raise NoEstimateError(
                    f"`mix` must be 'training' as long as {name!r} has no estimate, "
                    "but is 'estimate'. Send images of the site first."
                )
            site = self._own(name)
            site.adapt, site.approved = "approve", mix.copy()
        self.flush()

    def set_adapt(self, name: str, adapt: Adapt) -> None:
        """Say whose word changes a site's mix."""
        with self._lock:
            self.get(name)
            self._own(name).adapt = check_adapt(adapt)
        self.flush()

    def flush(self) -> None:
        """Write what has come; keep it for the next time if that fails."""
        with self._file_lock:
            with self._lock:
                changed = [site for site in self._sites.values() if site.is_changed]
                taken = {site.name: site.pending for site in changed}
                rows = [self._row(site) for site in changed]
                for site in changed:
                    site.pending, site.is_changed = [], False
            try:
                self._write(rows, taken)
            except sqlite3.Error as error:
                self._put_back(taken)
                self.fault = f"The state cannot be written ({error})."
            else:
                self.fault = ""

    def refresh(self) -> None:
        """Write what has come, then estimate where something has."""
        self.flush()
        with self._lock:
            stale = [site for site in self._sites.values() if site.is_stale]
        if self._judge is not None:
            for site in stale:
                self._estimate(site, self._judge)

    def window(self, name: str) -> LogitRows:
        """Return the logits of a site's latest images, shape (N, C)."""
        query = "SELECT logits FROM windows WHERE site = ? ORDER BY upto"
        with self._file_lock:
            blocks = [
                np.frombuffer(blob, np.float32) for (blob,) in self._all(query, name)
            ]
        shape = (-1, len(self.class_names))
        if not blocks:
            return np.empty((0, shape[1]), np.float32)
        return np.concatenate(blocks).reshape(shape)[-self._longest :]

    def history(self, name: str) -> list[Judgement]:
        """Return a site's judgements, the oldest first."""
        query = (
            "SELECT num_seen, at, estimate, low, high FROM history WHERE site = ? "
            "ORDER BY num_seen"
        )
        with self._file_lock:
            rows = self._all(query, name)
        return [Judgement(*row[:2], *map(_as_vector, row[2:])) for row in rows]

    def alarms(self, name: str) -> list[str]:
        """Return what a person should know of a site, in sentences."""
        site, mix = self.get(name), self.mix(name)
        alarms = [self.fault] if self.fault else []
        if site.doubt and site.expected is None:
            alarms.append(site.doubt)
        if site.estimate is None or not site.is_supported:
            return alarms
        gap = 0.5 * np.abs(site.estimate - mix.shares).sum()
        if gap >= MOVED:
            kind = {"training": "training prior", "book": "site prior"}
            alarms.append(
                f"The class distribution has shifted: the estimate and the "
                f"{kind.get(mix.origin, 'approved prior')}, which predictions use, "
                f"differ in {gap:.0%} of the images."
            )
        return alarms

    def close(self) -> None:
        """Write what has come, and close the file."""
        self.flush()
        with self._file_lock:
            self._file.close()

    def _own(self, name: str) -> SiteState:
        """Return a site that is about to change, made anew if need be."""
        self.check_room(name)
        site = self._sites.setdefault(name, SiteState(name, self.default_adapt))
        site.is_changed = True
        return site

    def _put_back(self, taken: dict[str, list[LogitRows]]) -> None:
        with self._lock:
            for name, blocks in taken.items():
                self._sites[name].pending[:0] = blocks
                self._sites[name].is_changed = True

    def _estimate(self, site: SiteState, judge: "_Judge") -> None:
        window = self.window(site.name)
        with self._lock:
            site.is_stale = False
            num_seen = site.num_seen
        if not len(window):
            return
        is_due = len(window) >= FEWEST and self._is_due(site, num_seen)
        found = judge.judge(window) if is_due else None
        strength = site.strength if found is None else judge.strength
        estimate = judge.estimate(window, strength)
        certificate = judge.certify(window) if is_due else None
        with self._lock:
            site.estimate, site.is_changed = estimate, True
            if found is not None and certificate is not None:
                self._take(site, found, strength, num_seen)
                site.expected = _expected(certificate)
                site.doubt = _doubt(certificate)
        if found is not None:
            self._remember(site, num_seen)

    def _take(
        self, site: SiteState, found: Adaptation, strength: float, num_seen: int
    ) -> None:
        assert site.estimate is not None
        assert found.interval is not None
        low, high = found.interval.numpy()
        site.low = np.minimum(low, site.estimate)
        site.high = np.maximum(high, site.estimate)
        site.p_value, site.is_supported = found.assumption_p_value, found.is_adapted
        # What follows the colon says which prior is used: here the setting decides.
        site.reason = f"{found.reason.partition(':')[0].rstrip('.')}."
        site.strength, site.judged = strength, num_seen

    def _is_due(self, site: SiteState, num_seen: int) -> bool:
        """Judge a young stream often, and an old one twice in a half-life."""
        step = min(max(FEWEST, site.judged / 4), self._half_life / 2)
        return site.p_value is None or num_seen - site.judged >= step

    def _read_sites(self) -> Iterator[SiteState]:
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

    def _vector(self, blob: bytes | None) -> Vector | None:
        if blob is None:
            return None
        if len(blob) != 8 * len(self.class_names):
            raise ValueError(
                f"`state` must hold mixes of {len(self.class_names)} classes, but "
                f"holds one of {len(blob)} bytes. Name a new file."
            )
        return _as_vector(blob)

    def _row(self, site: SiteState) -> tuple[Any, ...]:
        vectors = (site.approved, site.estimate, site.low, site.high, site.expected)
        blobs = (None if v is None else v.tobytes() for v in vectors)
        approved, *found, expected = blobs
        seen = (site.num_seen, site.judged)
        verdict = (site.p_value, site.strength, site.is_supported, site.reason)
        outlook = (expected, site.doubt)
        return site.name, site.adapt, approved, *seen, *found, *verdict, *outlook

    def _write(
        self, rows: list[tuple[Any, ...]], taken: dict[str, list[LogitRows]]
    ) -> None:
        num_seen = {row[0]: row[3] for row in rows}
        with self._file:  # one transaction
            places = ", ".join("?" * 14)
            query = f"INSERT OR REPLACE INTO sites VALUES ({places})"
            self._file.executemany(query, rows)
            if self._judge is None:
                return
            for name, blocks in taken.items():
                if blocks:
                    blob = np.concatenate(blocks).tobytes()
                    upto = num_seen[name]
                    query = "INSERT OR REPLACE INTO windows VALUES (?, ?, ?)"
                    self._file.execute(query, (name, upto, blob))
                    query = "DELETE FROM windows WHERE site = ? AND upto <= ?"
                    self._file.execute(query, (name, upto - self._longest))
        with self._lock:
            for name, blocks in taken.items():
                self._sites[name].is_stale |= bool(blocks)

    def _remember(self, site: SiteState, num_seen: int) -> None:
        """Keep the judgement for the history, and not too many of them."""
        vectors = (site.estimate, site.low, site.high)
        blobs = [vector.tobytes() for vector in vectors if vector is not None]
        oldest = (
            "DELETE FROM history WHERE site = ? AND num_seen NOT IN (SELECT num_seen "
            "FROM history WHERE site = ? ORDER BY num_seen DESC LIMIT ?)"
        )
        with self._file_lock, self._file:
            query = "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?)"
            self._file.execute(query, (site.name, num_seen, time.time(), *blobs))
            self._file.execute(oldest, (site.name, site.name, MOST_HISTORY))

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._file.execute(query, values).fetchall()


class _FittedOnce(MAPEstimator):
    """`adapt` fits what it is given, which takes longer than the rest of it."""

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> "_FittedOnce":
        is_fitted = hasattr(self, "counts_") and len(self.counts_) == logits.shape[1]
        return self if is_fitted else super().fit(logits, labels)


class _Judge:
    """Estimates and tests windows of logits; one serves all sites, one at a time.

    The estimate of a stream is that of its window, so that nothing is kept between.
    """

    def __init__(self, held_out: Predictions, half_life: float) -> None:
        counts = held_out.source_counts
        priors: dict[str, Any] = {
            "logit_prior": held_out.logit_prior,
            "source_prior": None if counts is None else from_counts(counts),
        }
        self._held_out = held_out
        self._most = int(JUDGED_HALF_LIVES * half_life)
        self._stream = OnlineEstimator(**priors, half_life=half_life)
        self._stream.fit(held_out.logits, held_out.labels)
        self._whole, self._strength = _FittedOnce(**priors), max(STRENGTHS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewSamplesWarning)  # said once already
            self._whole.fit(held_out.logits, held_out.labels)

    @property
    def strength(self) -> float:
        """How much the last judgement would draw an estimate to a tilt."""
        return self._strength

    def estimate(self, window: LogitRows, strength: float) -> Vector:
        """Return the mix (C,) at the end of a window (N, C)."""
        self._stream.strength = strength
        self._stream.reset()
        found: Vector = self._stream.update(window)
        return found

    def judge(self, window: LogitRows) -> Adaptation:
        """Return what the end of a window (N, C) supports, with a 95 % band."""
        recent = window[-self._most :].copy()
        found = adapt(self._held_out, recent, estimator=self._whole)
        self._strength = getattr(found.estimator, "strength_", self._strength)
        return found

    def certify(self, window: LogitRows) -> Certificate:
        """Return what accuracy to expect at the end of a window (N, C)."""
        return certify(
            self._held_out,
            window[-self._most :].copy(),
            estimator=self._whole,
            num_replicates=CERTIFICATE_REPLICATES,
        )


def _expected(certificate: Certificate) -> Vector | None:
    """Return accuracy and interval, as trained and for the estimate, (2, 3)."""
    if certificate.is_refused:
        return None
    both = (certificate.as_trained, certificate)
    return np.array([(part.accuracy, *part.accuracy_interval) for part in both])


def _doubt(certificate: Certificate) -> str:
    """Return why the expected accuracy is not supported; empty if it is."""
    if certificate.status == "supported":
        return ""
    reason = certificate.reason
    return reason[0].upper() + reason[1:]


def check_adapt(adapt: str) -> Adapt:
    """Return whose word changes a mix, and raise for anything else."""
    if adapt not in get_args(Adapt):
        raise ValueError(
            f"`adapt` must be 'auto', 'approve' or 'never', but is {adapt!r}."
        )
    return adapt  # type: ignore[return-value] # it is one of them


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
            file.executescript(SCHEMA)
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
