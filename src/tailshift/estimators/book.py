"""Site priors: one prior per site, shrunk towards the prior of its region."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from tailshift.checks import check_counts
from tailshift.estimators.base import PriorEstimator
from tailshift.estimators.posteriors import Logits
from tailshift.estimators.shrinkage import ABOVE_ROOT, Shrunk, nearest_mix, shrink
from tailshift.priors import VectorLike, as_prior
from tailshift.registry import did_you_mean
from tailshift.storage import read_json, write_json
from tailshift.text import cut

ALL = "all"
"""The root of the tree: the parent of every site that has no other."""
FLOOR = 1e-3

_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Site(BaseModel):
    """What a book holds of a site.

    A site has counts, shares with the number of samples that they rest on, or neither:
    then it is a group, or nothing is known of it yet.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    parent: str = ALL
    counts: Annotated[tuple[int, ...] | None, Field(strict=False)] = None
    shares: Annotated[tuple[_Number, ...] | None, Field(strict=False)] = None
    num_samples: _Number | None = None
    is_estimate: bool = False
    """Whether the shares were estimated without labels."""

    def own_counts(self, num_classes: int) -> Tensor:
        """Return what was seen of each class, whole or not, float64, shape (C,)."""
        if self.counts is not None:
            counts = torch.tensor(self.counts, dtype=torch.int64)
            return check_counts(counts, name="counts", num_classes=num_classes).double()
        if self.shares is None:
            return torch.zeros(num_classes, dtype=torch.float64)
        if len(self.shares) != num_classes:
            raise ValueError(
                f"`shares` has {len(self.shares)} entries but there are {num_classes} "
                "classes."
            )
        shares = as_prior(self.shares, name="shares")
        assert self.num_samples is not None
        return self.num_samples * shares


class _BookFile(BaseModel):
    """What the file of a book holds."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    class_names: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    source_prior: Annotated[tuple[float, ...], Field(strict=False)]
    floor: float = FLOOR
    sites: dict[str, Site]


class SitePriors:
    r"""The class distributions of many sites, each shrunk to its parent's.

    .. math:: q_{site} = (1 - \varepsilon) \left(t\, q_{parent}
                         + (1 - t)\, \frac{n_{site}}{n_{site \cdot}}\right)
                         + \varepsilon\, p_s

    where n is what was counted or estimated at the site, and t makes the mix the
    nearest that can be expected
    (:func:`~tailshift.estimators.shrinkage.nearest_mix`) if the site's mix is drawn
    around its parent's with the strength A that its siblings have
    (:func:`~tailshift.estimators.shrinkage.shrink`): where siblings are alike, a site
    of which little is known gets their mix, and where they are not, its own counts
    decide. A group has the mean of what its sites and its own parent tell of it. The
    parent of all is ``"all"``, and that of ``"all"`` the source prior.

    Args:
        class_names: One per class.
        source_prior: :math:`p_s`, positive, shape (C,).
        floor: :math:`\varepsilon`, so that no class becomes impossible because it was
            not seen: its share stays above this part of its share in training.

    Example:
        >>> book = SitePriors(["kea", "kiwi"], [0.5, 0.5])
        >>> book.add("north")
        >>> book.add("lake", counts=[90, 10], parent="north")
        >>> book.add("hill", counts=[7, 3], parent="north")
        >>> book.add("new", parent="north")
        >>> [round(book.prior(site)[0].item(), 2) for site in book.sites]
        [0.78, 0.89, 0.74, 0.78]
    """

    def __init__(
        self,
        class_names: Sequence[str],
        source_prior: VectorLike,
        *,
        floor: float = FLOOR,
    ) -> None:
        self.source_prior = as_prior(source_prior, positive=True)
        self.class_names = tuple(class_names)
        if len(self.class_names) != len(self.source_prior):
            raise ValueError(
                f"`class_names` has {len(self.class_names)} names but `source_prior` "
                f"has {len(self.source_prior)} entries."
            )
        if not 0 <= floor < 1:
            raise ValueError(
                f"`floor` must be at least 0 and less than 1, but is {floor:g}."
            )
        self.floor = float(floor)
        self._sites: dict[str, Site] = {}
        self._shrunk: Shrunk | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites and groups, in the order in which they came."""
        return tuple(self._sites)

    def add(
        self,
        site: str,
        *,
        counts: VectorLike | None = None,
        shares: VectorLike | None = None,
        num_samples: float | None = None,
        parent: str = ALL,
        overwrite: bool = False,
    ) -> None:
        """Add a site: with counts, with shares, or with nothing known as yet.

        Args:
            site: A name for it.
            counts: Labelled samples of each class there, integers, shape (C,).
            shares: The share of each class there, shape (C,).
            num_samples: How many labelled samples the shares are worth.
            parent: The group that it belongs to, added before: a region, a season.
            overwrite: Replace a site that is there, instead of raising.
        """
        self._check_new(site, overwrite)
        _check_name(parent)
        entry = _entry(
            parent=parent, counts=counts, shares=shares, num_samples=num_samples
        )
        entry.own_counts(len(self.source_prior))  # it says what is wrong
        sites = {**self._sites, site: entry}
        _check_parents(sites, site)
        self._sites, self._shrunk = sites, None

    def update(self, site: str, logits: Logits, estimator: PriorEstimator) -> None:
        """Replace what is known of a site by an estimate from unlabelled logits.

        The estimate counts as many samples as labels would have told as much
        (:func:`~tailshift.estimators.posteriors.effective_samples`): fewer than there
        are logits, because the model is not always sure.

        Args:
            site: A site of the book; it keeps its parent.
            logits: Those of its images, shape (N, C), or chunks of them.
            estimator: Fitted on held-out logits of the same model. One that does not
                shrink by itself, :class:`~tailshift.estimators.EMEstimator`, leaves
                that to the book.
        """
        parent = self._site(site).parent
        q = torch.as_tensor(estimator.estimate(logits), dtype=torch.float64)
        found = Site(
            parent=parent,
            shares=tuple((q / q.sum()).tolist()),
            num_samples=estimator.effective_samples_,
            is_estimate=True,
        )
        found.own_counts(len(self.source_prior))  # it says what is wrong
        self._sites, self._shrunk = {**self._sites, site: found}, None

    def prior(self, site: str) -> Tensor:
        """Return the mix to answer for at a site, or at ``"all"``, float64, (C,)."""
        if site != ALL:
            self._site(site)
        row = 0 if site == ALL else 1 + list(self._sites).index(site)
        fitted = self._fitted()
        q = fitted.means[row]
        if site != ALL and row not in fitted.strengths:  # no group
            above = self._parents()[row]
            pseudo_counts = fitted.strengths[above] * fitted.means[above]
            q = nearest_mix(fitted.totals[row], pseudo_counts)
        return (1 - self.floor) * q + self.floor * self.source_prior

    def strength(self, parent: str = ALL) -> float:
        """Return how closely the children of a group follow it, A, in samples."""
        if parent != ALL:
            self._site(parent)
        row = 0 if parent == ALL else 1 + list(self._sites).index(parent)
        strengths = self._fitted().strengths
        if row not in strengths:
            raise ValueError(f"`parent` must be a group, but no site is in {parent!r}.")
        return strengths[row]

    def num_samples(self, site: str) -> float:
        """Return how many labelled samples what is known of a site itself is worth."""
        return self._site(site).own_counts(len(self.source_prior)).sum().item()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the book as JSON, whole or not at all; a file there is replaced."""
        sites = {
            name: site.model_dump(exclude_defaults=True)
            for name, site in self._sites.items()
        }
        content = {
            "class_names": list(self.class_names),
            "source_prior": self.source_prior.tolist(),
            "floor": self.floor,
            "sites": sites,
        }
        write_json(Path(path), content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SitePriors":
        """Return the book in a file, after checking all of it."""
        path = Path(path)
        content = read_json(path, remedy="Undo the edit, or write it with SitePriors.")
        try:
            found = _BookFile.model_validate(content)
            book = cls(found.class_names, found.source_prior, floor=found.floor)
            for name, site in found.sites.items():
                book._check_new(name, overwrite=False)
                _check_given(site.counts, site.shares, site.num_samples)
                site.own_counts(len(book.source_prior))
            for name in found.sites:
                _check_parents(found.sites, name)
        except ValidationError as error:
            raise ValueError(f"{path} is no book of priors: {_fault(error)}") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be used: {error}") from error
        book._sites = dict(found.sites)
        return book

    def __repr__(self) -> str:
        return f"SitePriors({len(self._sites)} sites, {len(self.class_names)} classes)"

    def _site(self, name: str) -> Site:
        if name not in self._sites:
            hint = did_you_mean(name, list(self._sites))
            known = f"{hint or ';'} Known: {_few(self._sites)}"
            raise ValueError(f"unknown site {cut(repr(name))}{known}")
        return self._sites[name]

    def _check_new(self, site: Any, overwrite: bool) -> None:
        if not isinstance(site, str) or not site or site == ALL:
            raise ValueError(
                f"`site` must be a name other than '{ALL}', which is the parent of "
                f"all sites, but is {cut(repr(site))}."
            )
        if site in self._sites and not overwrite:
            raise ValueError(
                f"`site` must be new, but {cut(repr(site))} is in the book. Give "
                "overwrite=True to replace it."
            )

    def _fitted(self) -> Shrunk:
        """Return the mixes and strengths, computed once after each change."""
        if self._shrunk is None:
            C = len(self.source_prior)
            sites = list(self._sites.values())
            own = [site.own_counts(C) for site in sites]
            self._shrunk = shrink(
                torch.stack([torch.zeros(C, dtype=torch.float64), *own]),
                self._parents(),
                self.source_prior,
                [False, *(site.is_estimate for site in sites)],
            )
        return self._shrunk

    def _parents(self) -> list[int]:
        """Return the row of each site's parent; ``"all"`` is row 0."""
        rows = {ALL: 0} | {name: i for i, name in enumerate(self._sites, start=1)}
        return [ABOVE_ROOT, *(rows[site.parent] for site in self._sites.values())]


def _entry(
    *,
    parent: str,
    counts: VectorLike | None,
    shares: VectorLike | None,
    num_samples: float | None,
) -> Site:
    _check_given(counts, shares, num_samples)
    if counts is not None:
        return Site(
            parent=parent, counts=tuple(check_counts(counts, name="counts").tolist())
        )
    if shares is None:
        return Site(parent=parent)
    assert num_samples is not None
    p = as_prior(shares, name="shares")
    return Site(parent=parent, shares=tuple(p.tolist()), num_samples=float(num_samples))


def _check_given(counts: Any, shares: Any, num_samples: Any) -> None:
    """Refuse two mixes for a site, and shares that rest on nobody knows how much."""
    if counts is not None and (shares is not None or num_samples is not None):
        raise ValueError(
            "`counts` must stand alone, but `shares` or `num_samples` came with them: "
            "counts say how many samples there are."
        )
    if (shares is None) != (num_samples is None):
        missing = "num_samples" if num_samples is None else "shares"
        raise ValueError(
            "`shares` and `num_samples` must come together, but there is no "
            f"`{missing}`. Say how many labelled samples the shares are worth."
        )
    if num_samples is not None and not 0 <= num_samples < float("inf"):
        raise ValueError(
            f"`num_samples` must be finite and not negative, but is {num_samples:g}."
        )


def _check_name(parent: Any) -> None:
    if not isinstance(parent, str):
        raise TypeError(
            f"`parent` must be the name of a site, or '{ALL}', but is "
            f"{type(parent).__name__}."
        )


def _check_parents(sites: dict[str, Site], site: str) -> None:
    """Refuse a parent that is not there, and a site that is its own ancestor."""
    seen = [site]
    while (parent := sites[seen[-1]].parent) != ALL:
        if parent not in sites:
            hint = did_you_mean(parent, [ALL, *sites]) or "."
            raise ValueError(
                f"`parent` must be '{ALL}' or a site of the book, but {seen[-1]!r} has "
                f"{cut(repr(parent))}{hint} Add the parent first."
            )
        if parent in seen:
            chain = " → ".join(repr(name) for name in [*seen, parent])
            raise ValueError(
                f"`parent` must lead to '{ALL}', but {cut(chain)} is a circle."
            )
        seen.append(parent)


def _few(names: Sequence[str] | dict[str, Site]) -> str:
    """Return the first ten names, for a message."""
    shown = [cut(name, 40) for name in list(names)[:10]]
    return ", ".join([*shown, "…"] if len(names) > 10 else shown) or "none"


def _fault(error: ValidationError) -> str:
    """Return the first fault of a file: what a key must be, and what it is."""
    fault = error.errors()[0]
    key = cut(".".join(map(str, fault["loc"])), 80)
    if fault["type"] == "missing":
        return f"`{key}` is missing."
    if fault["type"] == "extra_forbidden":
        return f"`{key}` is unknown."
    rule = fault["msg"].replace("Input should be", "must be", 1)
    return f"`{key}` {rule}, but is {cut(repr(fault['input']), 80)}."
