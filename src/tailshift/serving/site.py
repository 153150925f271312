"""One site: its state, its priors and its estimates over time."""

from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tailshift.estimators.map_em import STRENGTHS

__all__ = [
    "Adapt",
    "Digests",
    "EvidenceLevel",
    "LogitRows",
    "Mix",
    "MixFrom",
    "NoEstimateError",
    "OutdatedEstimateError",
    "SiteState",
    "StateError",
    "StoredEstimate",
    "TooManySitesError",
    "UnknownSiteError",
    "Vector",
    "Window",
    "check_adapt",
    "row_digests",
]

Adapt: TypeAlias = Literal["auto", "approve", "never"]
"""Adaptation policy: use estimates, use what a person approved, or never adapt."""

MixFrom: TypeAlias = Literal["training", "book", "approved", "estimate", "request"]
"""Origin of the prior that predictions use."""

EvidenceLevel: TypeAlias = Literal["none", "refused", "indicative", "supported"]
"""What the last certificate says of an estimate; "none" before the first one."""

Vector: TypeAlias = NDArray[np.float64]
LogitRows: TypeAlias = NDArray[np.float32]
Digests: TypeAlias = NDArray[np.uint64]

_MAX_SHOWN = 16  # estimates that a person may still approve after newer ones


class Mix(NamedTuple):
    """A prior that predictions use, shape (C,), and its origin."""

    shares: Vector
    origin: MixFrom


class StoredEstimate(NamedTuple):
    """An estimated prior with its 95 % interval, after a number of images."""

    num_seen: int
    at: float
    estimate: Vector
    low: Vector
    high: Vector


class Window(NamedTuple):
    """Logits (N, C) of images in a row, and a digest of each image (N,)."""

    logits: LogitRows
    digests: Digests

    def distinct(self) -> LogitRows:
        """Return the logits of distinct images, each at its last occurrence."""
        _, last = np.unique(self.digests[::-1], return_index=True)
        return self.logits[np.sort(len(self.digests) - 1 - last)]


def row_digests(rows: NDArray[np.generic]) -> Digests:
    """Return a digest of each row of an array, shape (N,).

    Example:
        >>> first, second, third = row_digests(np.array([[1, 2], [3, 4], [1, 2]]))
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    parts = [blake2b(row.tobytes(), digest_size=8).digest() for row in rows]
    return np.frombuffer(b"".join(parts), np.uint64)


@dataclass
class SiteState:
    """State of a site; its window of logits is in the state file."""

    name: str
    """Name of the site, as requests give it."""

    adapt: Adapt
    """Adaptation policy."""

    approved: Vector | None = None
    """Prior that a person has approved, shape (C,)."""

    num_seen: int = 0
    """Number of images seen."""

    judged: int = 0
    """Number of images at the last shift test."""

    estimate: Vector | None = None
    """Estimated prior after the last refresh, shape (C,)."""

    low: Vector | None = None
    """Lower end of its 95 % interval at the last test, shape (C,)."""

    high: Vector | None = None
    """Upper end of the interval."""

    p_value: float | None = None
    """P-value of the last test of the label-shift assumption."""

    strength: float = max(STRENGTHS)
    """Shrinkage of the estimate towards a power of the source prior."""

    is_supported: bool = False
    """Whether the data supported the estimate at the last test."""

    reason: str = ""
    """Why, in a sentence."""

    expected: Vector | None = None
    """Expected accuracy and its 95 % interval, as trained and re-targeted, shape
    (2, 3); None if the certificate was refused."""

    doubt: str = ""
    """Why the expected accuracy is indicative or refused; empty if supported."""

    pending: list[Window] = field(default_factory=list)
    """Logits that are not yet in the state file."""

    is_stale: bool = False
    """Whether the window has images that the estimate has not seen."""

    is_changed: bool = False
    """Whether the state file has an older version."""

    is_deleted: bool = False
    """Whether the site was deleted while it was being estimated."""

    num_distinct: int = 0
    """Number of distinct images of the window at the last refresh."""

    num_window: int = 0
    """Number of images of the window at the last refresh."""

    shown: deque[tuple[str, Vector]] = field(
        default_factory=lambda: deque(maxlen=_MAX_SHOWN)
    )
    """Estimates that were sent to clients, by version."""

    @property
    def evidence(self) -> EvidenceLevel:
        """What the last certificate says of the estimate."""
        if not self.judged:
            return "none"
        if not self.doubt:
            return "supported"
        return "refused" if self.expected is None else "indicative"

    @property
    def version(self) -> str | None:
        """Version of the estimate, which changes with each of its values."""
        if self.estimate is None:
            return None
        return sha256(self.estimate.tobytes()).hexdigest()[:16]

    def show(self) -> str | None:
        """Return the version of the estimate, and keep the estimate for approval."""
        version = self.version
        known = {shown for shown, _ in self.shown}
        if version is not None and self.estimate is not None and version not in known:
            self.shown.append((version, self.estimate))
        return version

    def seen_estimate(self, version: str | None) -> Vector | None:
        """Return the estimate of a version, or the current one without a version.

        Raises:
            OutdatedEstimateError: If the version is not kept any more.
        """
        if version is None or version == self.version:
            return self.estimate
        for known, estimate in self.shown:
            if known == version:
                return estimate
        raise OutdatedEstimateError(
            f"`version` {version!r} is not an estimate that was shown lately. Load the "
            "site again and approve what it shows now."
        )


class UnknownSiteError(ValueError):
    """The site has no images and no stored prior."""


class TooManySitesError(ValueError):
    """A new site would exceed the maximum number of sites."""


class NoEstimateError(ValueError):
    """The site has no estimate."""


class OutdatedEstimateError(ValueError):
    """The estimate to approve is not kept any more."""


class StateError(Exception):
    """The state file cannot be read or written."""


def check_adapt(adapt: str) -> Adapt:
    """Return an adaptation policy, and raise for anything else."""
    if adapt not in get_args(Adapt):
        raise ValueError(
            f"`adapt` must be 'auto', 'approve' or 'never', got {adapt!r}."
        )
    return adapt  # type: ignore[return-value] # it is one of them
