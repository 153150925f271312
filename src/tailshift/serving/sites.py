"""Sites: the class distribution of each, estimated as its images arrive."""

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from tailshift.estimators import Adaptation
from tailshift.estimators.online import HALF_LIVES
from tailshift.predictions import Predictions
from tailshift.registry import did_you_mean
from tailshift.serving.site import (
    Adapt,
    Judgement,
    LogitRows,
    Mix,
    NoEstimateError,
    SiteState,
    TooManySitesError,
    UnknownSiteError,
    Vector,
    check_adapt,
)
from tailshift.serving.site_estimates import SiteEstimator, doubt, expected_accuracy
from tailshift.serving.site_file import SiteFile, site_row

FEWEST = 50  # images, before a site's stream is judged
MOST_WINDOW = 2**23  # logits of a site that are kept: 32 MB
MOVED = 0.1  # total variation from which an approved mix counts as left


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
        self._lock = threading.RLock()
        longest = max(1, MOST_WINDOW // len(class_names))
        self._half_life = min(half_life, longest / HALF_LIVES)
        self._longest = int(HALF_LIVES * self._half_life)
        self._estimator = (
            None if held_out is None else SiteEstimator(held_out, self._half_life)
        )
        self._file = SiteFile(
            path, class_names=class_names, probe=probe, max_window=self._longest
        )
        self._sites = {site.name: site for site in self._file.sites()}

    @property
    def is_estimating(self) -> bool:
        """Whether there are held-out logits to calibrate on."""
        return self._estimator is not None

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
        with self._file.lock:
            with self._lock:
                changed = [site for site in self._sites.values() if site.is_changed]
                taken = {site.name: site.pending for site in changed}
                rows = [site_row(site) for site in changed]
                for site in changed:
                    site.pending, site.is_changed = [], False
            blocks = {} if self._estimator is None else taken
            try:
                self._file.write(rows, blocks)
            except sqlite3.Error as error:
                self._put_back(taken)
                self.fault = f"The state cannot be written ({error})."
                return
            self.fault = ""
            with self._lock:
                for name, logits in blocks.items():
                    self._sites[name].is_stale |= bool(logits)

    def refresh(self) -> None:
        """Write what has come, then estimate where something has."""
        self.flush()
        with self._lock:
            stale = [site for site in self._sites.values() if site.is_stale]
        if self._estimator is not None:
            for site in stale:
                self._estimate(site, self._estimator)

    def window(self, name: str) -> LogitRows:
        """Return the logits of a site's latest images, shape (N, C)."""
        return self._file.window(name)

    def history(self, name: str) -> list[Judgement]:
        """Return a site's estimates, the oldest first."""
        return self._file.history(name)

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

    def _estimate(self, site: SiteState, estimator: SiteEstimator) -> None:
        window = self.window(site.name)
        with self._lock:
            site.is_stale = False
            num_seen = site.num_seen
        if not len(window):
            return
        is_due = len(window) >= FEWEST and self._is_due(site, num_seen)
        found = estimator.judge(window) if is_due else None
        strength = site.strength if found is None else estimator.strength
        estimate = estimator.estimate(window, strength)
        certificate = estimator.certify(window) if is_due else None
        with self._lock:
            site.estimate, site.is_changed = estimate, True
            if found is not None and certificate is not None:
                self._take(site, found, strength, num_seen)
                site.expected = expected_accuracy(certificate)
                site.doubt = doubt(certificate)
        if found is not None:
            self._file.add_to_history(site, num_seen)

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
