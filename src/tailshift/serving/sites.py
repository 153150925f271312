"""Sites: the class distribution of each, estimated as its images arrive."""

import math
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np

from tailshift.estimators import Adaptation
from tailshift.estimators.online import HALF_LIVES
from tailshift.predictions import Predictions
from tailshift.serving.site import (
    Adapt,
    Digests,
    LogitRows,
    Mix,
    NoEstimateError,
    SiteState,
    StateError,
    StoredEstimate,
    TooManySitesError,
    UnknownSiteError,
    Vector,
    Window,
    check_adapt,
    row_digests,
)
from tailshift.serving.site_estimates import SiteEstimator, doubt, expected_accuracy
from tailshift.serving.site_file import SiteFile, site_row

__all__ = ["Sites"]

_MIN_TESTED = 50  # distinct images before the first shift test
_MAX_WINDOW = 2**23  # logits per site that are kept: 32 MB
_SHIFT_THRESHOLD = 0.1  # total variation from the prior in use that raises an alarm
_REPEATED_THRESHOLD = 0.5  # share of repeated images that raises an alarm


class Sites:
    """All sites of a server: their windows of logits, priors and policies.

    `record` and `mix` take microseconds. Other threads do the slow work: `flush`
    writes new images, so a restart loses only what came after it; `refresh` flushes
    and estimates, and is called by one thread at a time.

    Args:
        path: SQLite file; None keeps everything in memory.
        class_names: One per class.
        source_prior: :math:`p_s` of the training data, shape (C,).
        probe: Logits of a fixed image, which identify the model, shape (C,).
        held_out: Labelled logits of the same model; without them nothing is estimated.
        book: Priors of sites that are known beforehand, each (C,).
        adapt: Adaptation policy of a new site.
        half_life: Number of images after which an image counts half.
        most_sites: Maximum number of sites.
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
        self._reserved: Counter[str] = Counter()
        longest = max(1, _MAX_WINDOW // len(class_names))
        self._half_life = min(half_life, longest / HALF_LIVES)
        self._longest = int(HALF_LIVES * self._half_life)
        self._estimator = (
            None if held_out is None else SiteEstimator(held_out, self._half_life)
        )
        self._file = SiteFile(
            path, class_names=class_names, probe=probe, max_window=self._longest
        )
        self._sites = {site.name: site for site in self._file.sites()}
        for name, site in self._sites.items():
            _count_distinct(site, self._file.window(name))

    @property
    def is_estimating(self) -> bool:
        """Whether there are held-out logits to calibrate on."""
        return self._estimator is not None

    @property
    def half_life(self) -> float:
        """Number of images after which one counts half; less with many classes."""
        return self._half_life

    def names(self) -> list[str]:
        """Return the names of the sites with images or a stored prior."""
        with self._lock:
            return sorted({*self._sites, *self._book})

    def get(self, name: str) -> SiteState:
        """Return a site.

        Raises:
            UnknownSiteError: If it has neither images nor a stored prior.
        """
        with self._lock:
            if name not in self._sites and name not in self._book:
                raise UnknownSiteError(
                    f"`site` {name!r} is unknown. `GET /sites` lists the sites with "
                    "images or a stored prior."
                )
            return self._sites.get(name) or SiteState(name, self.default_adapt)

    def mix(self, name: str) -> Mix:
        """Return the prior that predictions of a site use, which may be new."""
        with self._lock:
            site = self._sites.get(name) or SiteState(name, self.default_adapt)
            if site.adapt == "auto" and site.estimate is not None and site.is_supported:
                return Mix(site.estimate, "estimate")
            if site.adapt == "approve" and site.approved is not None:
                return Mix(site.approved, "approved")
        if name in self._book:
            return Mix(self._book[name], "book")
        return Mix(self.source_prior, "training")

    @contextmanager
    def reserving(self, name: str) -> Iterator[None]:
        """Keep room for a site, so `record` in the block cannot fail.

        Raises:
            TooManySitesError: If the site is new and there are too many.
        """
        with self._lock:
            self._check_room(name)
            self._reserved[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._reserved[name] -= 1
                if not self._reserved[name]:
                    del self._reserved[name]

    def record(
        self, name: str, logits: LogitRows, digests: Digests | None = None
    ) -> None:
        """Add images to a site.

        Args:
            name: The site.
            logits: Logits with the trained prior, shape (N, C).
            digests: One per image, equal for equal images; by default of the logits.
        """
        digests = row_digests(logits) if digests is None else digests
        with self._lock:
            site = self._own(name)
            site.num_seen += len(logits)
            block = Window(logits[-self._longest :], digests[-self._longest :])
            site.pending.append(block)
            waiting = sum(len(block.logits) for block in site.pending)
            while waiting - len(site.pending[0].logits) >= self._longest:
                waiting -= len(site.pending.pop(0).logits)

    def approve(
        self,
        name: str,
        origin: Literal["estimate", "training"],
        version: str | None = None,
    ) -> None:
        """Use an estimate or the training prior from now on, until changed.

        Args:
            name: The site.
            origin: Which of the two.
            version: Version of the estimate that was shown; by default the current one.

        Raises:
            NoEstimateError: If the site has no estimate.
            OutdatedEstimateError: If the estimate of this version is not kept any more.
            StateError: If the state file cannot be written; nothing changes then.
        """
        with self._lock:
            known = self.get(name)
            mix = self.source_prior
            if origin == "estimate":
                shown = known.seen_estimate(version)
                if shown is None:
                    raise NoEstimateError(
                        f"`site` {name!r} has no estimate to approve. Send images of "
                        "the site first, or give `mix` 'training'."
                    )
                mix = shown
            site = self._own(name)
            before = site.adapt, site.approved
            site.adapt, site.approved = "approve", mix.copy()
        self._keep(site, before)

    def set_adapt(self, name: str, adapt: Adapt) -> None:
        """Set a site's adaptation policy.

        Raises:
            StateError: If the state file cannot be written; nothing changes then.
        """
        with self._lock:
            self.get(name)
            site = self._own(name)
            before = site.adapt, site.approved
            site.adapt = check_adapt(adapt)
        self._keep(site, before)

    def delete(self, name: str) -> None:
        """Delete a site with its images and estimates; a stored prior stays.

        Raises:
            UnknownSiteError: If there is no such site.
            StateError: If the state file cannot be written; nothing changes then.
        """
        with self._file.lock:
            with self._lock:
                self.get(name)
                site = self._sites.pop(name, None)
            try:
                self._file.delete(name)
            except sqlite3.Error as error:
                with self._lock:
                    if site is not None:
                        self._sites.setdefault(name, site)
                raise StateError(_unwritten(error)) from None
            if site is not None:
                site.is_deleted = True

    def flush(self) -> bool:
        """Write new images and changes; on failure keep them for the next time."""
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
                self._put_back(changed, taken)
                self.fault = _unwritten(error)
                return False
            self.fault = ""
            with self._lock:
                for site in changed:
                    site.is_stale |= bool(blocks.get(site.name))
            return True

    def refresh(self) -> None:
        """Flush, then update the estimates of sites with new images.

        An error at one site does not keep the others from being estimated; the first
        one is raised at the end.
        """
        self.flush()
        with self._lock:
            stale = [site for site in self._sites.values() if site.is_stale]
        if self._estimator is None:
            return
        errors = []
        for site in stale:
            try:
                self._estimate(site, self._estimator)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def window(self, name: str) -> LogitRows:
        """Return the logits of a site's latest images, shape (N, C)."""
        return self._file.window(name).logits

    def history(self, name: str) -> list[StoredEstimate]:
        """Return a site's estimates, the oldest first."""
        return self._file.history(name)

    def alarms(self, name: str) -> list[str]:
        """Return what a person should know of a site, in sentences."""
        site, mix = self.get(name), self.mix(name)
        alarms = [self.fault] if self.fault else []
        num_repeated = site.num_window - site.num_distinct
        if num_repeated > _REPEATED_THRESHOLD * site.num_window:
            alarms.append(
                f"{num_repeated:,} of the last {site.num_window:,} images repeat "
                "another one and are not counted. Is a camera stuck?"
            )
        if site.doubt and site.expected is None:
            alarms.append(site.doubt)
        if site.estimate is None or not site.is_supported:
            return alarms
        gap = 0.5 * np.abs(site.estimate - mix.shares).sum()
        if gap >= _SHIFT_THRESHOLD:
            kind = {"training": "training prior", "book": "site prior"}
            alarms.append(
                f"The class distribution has shifted: the estimate and the "
                f"{kind.get(mix.origin, 'approved prior')}, which predictions use, "
                f"differ in {gap:.0%} of the images."
            )
        return alarms

    def close(self) -> None:
        """Flush, and close the file."""
        self.flush()
        self._file.close()

    def _check_room(self, name: str) -> None:
        known = self._sites.keys() | self._reserved.keys()
        if name not in known and len(known) >= self.most_sites:
            raise TooManySitesError(
                f"`site` is new, but the server keeps at most {self.most_sites:,} "
                "sites. Use a known site, or delete one with `DELETE /site`."
            )

    def _own(self, name: str) -> SiteState:
        """Return a site that is about to change, and create it if it is new."""
        self._check_room(name)
        site = self._sites.setdefault(name, SiteState(name, self.default_adapt))
        site.is_changed = True
        return site

    def _keep(self, site: SiteState, before: tuple[Adapt, Vector | None]) -> None:
        """Write a decision, or undo it: what was acknowledged outlives a restart."""
        if not self.flush():
            with self._lock:
                site.adapt, site.approved = before
            raise StateError(self.fault)

    def _put_back(
        self, sites: list[SiteState], taken: Mapping[str, list[Window]]
    ) -> None:
        with self._lock:
            for site in sites:
                site.pending[:0] = taken[site.name]
                site.is_changed = True

    def _estimate(self, site: SiteState, estimator: SiteEstimator) -> None:
        window = self._file.window(site.name)
        with self._lock:
            site.is_stale = False
            num_seen = site.num_seen
        if not len(window.logits):
            return
        # A repeated image is no new evidence, and a stuck camera sends nothing else.
        logits = window.distinct()
        is_due = len(logits) >= _MIN_TESTED and self._is_due(site, num_seen)
        found = estimator.judge(logits) if is_due else None
        strength = site.strength if found is None else estimator.strength
        estimate = estimator.estimate(logits, strength)
        certificate = estimator.certify(logits) if is_due else None
        with self._file.lock:
            with self._lock:
                if site.is_deleted:
                    return
                _count_distinct(site, window)
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
        is_tested = not math.isnan(found.assumption_p_value)
        site.p_value = float(found.assumption_p_value) if is_tested else None
        site.is_supported = found.is_adapted
        # What follows the colon says which prior is used: here the setting decides.
        site.reason = f"{found.reason.partition(':')[0].rstrip('.')}."
        site.strength, site.judged = strength, num_seen

    def _is_due(self, site: SiteState, num_seen: int) -> bool:
        """Test a young site often, and an old one twice per half-life."""
        step = min(max(_MIN_TESTED, site.judged / 4), self._half_life / 2)
        return not site.judged or num_seen - site.judged >= step


def _count_distinct(site: SiteState, window: Window) -> None:
    site.num_window = len(window.digests)
    site.num_distinct = len(np.unique(window.digests))


def _unwritten(error: sqlite3.Error) -> str:
    return f"The state cannot be written ({error})."
