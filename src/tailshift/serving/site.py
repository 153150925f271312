"""One site: its state, its priors and its estimates over time."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tailshift.estimators.map_em import STRENGTHS

Adapt: TypeAlias = Literal["auto", "approve", "never"]
"""Whose word changes a site's mix: the estimate's, a person's, or nobody's."""

MixFrom: TypeAlias = Literal["training", "book", "approved", "estimate", "request"]
"""Where a mix comes from that an answer is for."""

Vector: TypeAlias = NDArray[np.float64]
LogitRows: TypeAlias = NDArray[np.float32]


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


def check_adapt(adapt: str) -> Adapt:
    """Return whose word changes a mix, and raise for anything else."""
    if adapt not in get_args(Adapt):
        raise ValueError(
            f"`adapt` must be 'auto', 'approve' or 'never', but is {adapt!r}."
        )
    return adapt  # type: ignore[return-value] # it is one of them
