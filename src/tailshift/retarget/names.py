"""Match names of classes: lists, counts and labels of other people."""

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.files import read_text
from tailshift.priors import from_counts, read_counts
from tailshift.registry import did_you_mean
from tailshift.retarget.columns import check_distinct
from tailshift.target_names import parse_target
from tailshift.targets import Target, as_target_prior, is_file
from tailshift.text import cut

MAX_SHOWN = 5
NAME_COLUMNS = (
    *("species", "scientificname", "scientific name", "scientific_name", "verbatim"),
    *("class", "name", "taxon", "common name", "common_name", "label"),
)
COUNT_COLUMNS = (
    *("count", "counts", "numberofoccurrences", "occurrences", "n", "num", "total"),
    *("observation count", "individualcount", "number", "images", "frequency"),
)


class ClassNames:
    """Names of a model's classes, by which other spellings are found.

    A class is found by its whole name, by its scientific or common name (as in
    ``"Danaus plexippus (Monarch)"``), or by the parts of a SpeciesNet label, whatever
    the case. A spelling that two classes share finds neither.

    Args:
        names: One per class.

    Example:
        >>> names = ClassNames(["Danaus plexippus (Monarch)", "Vanessa atalanta"])
        >>> names.find("monarch"), names.find("Vanessa_atalanta")
        (0, 1)
    """

    def __init__(self, names: Sequence[str]) -> None:
        check_distinct(names)
        self.names = tuple(names)
        self._ids: dict[str, set[int]] = {}
        self._whole = {_folded(name): c for c, name in enumerate(names)}
        if len(self._whole) < len(names):  # names that differ in case only
            self._whole = {name: c for c, name in enumerate(names)}
        for c, name in enumerate(names):
            for spelling in {_folded(part) for part in spellings(name)}:
                self._ids.setdefault(spelling, set()).add(c)

    def find(self, name: str) -> int | None:
        """Return the class of a name, None if there is none; raise if there are two."""
        for key in (name, _folded(name)):
            if key in self._whole:
                return self._whole[key]
        found: set[int] = set()
        for spelling in spellings(name):
            found |= self._ids.get(_folded(spelling), set())
        if len(found) > 1:
            both = " and ".join(repr(self.names[c]) for c in sorted(found)[:2])
            raise ValueError(
                f"{cut(repr(name))} matches {len(found)} classes, such as {both}. "
                "Write the whole name."
            )
        return found.pop() if found else None

    def suggestion(self, name: str) -> str:
        """Return ``"; did you mean 'x'?"`` for the nearest spelling, else ``""``."""
        if len(self._ids) > 100_000:  # a comparison with each would take minutes
            return ""
        return did_you_mean(_folded(name), list(self._ids))

    def ids(self, wanted: Iterable[str], what: str) -> tuple[list[int], list[str]]:
        """Return the classes of names, ascending, and the names that are not found.

        Args:
            wanted: Names.
            what: Where they come from, for messages.
        """
        found: dict[int, str] = {}
        missing = []
        for name in wanted:
            c = self.find(name)
            if c is None:
                missing.append(name)
            elif c in found:
                raise ValueError(
                    f"{what} names the class {cut(repr(self.names[c]))} twice: "
                    f"{cut(repr(found[c]))} and {cut(repr(name))}."
                )
            else:
                found[c] = name
        return sorted(found), missing

    def describe_missing(self, missing: Sequence[str]) -> str:
        """Return names that are not found, with suggestions, for a message."""
        shown = [
            f"{cut(repr(name), 60)}{self.suggestion(name)}"
            for name in missing[:MAX_SHOWN]
        ]
        more = len(missing) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


def spellings(name: str) -> list[str]:
    """Return the whole name and the parts by which people call a class.

    Example:
        >>> spellings("Danaus plexippus (Monarch)")
        ['Danaus plexippus (Monarch)', 'Danaus plexippus', 'Monarch']
        >>> spellings("1f6;mammalia;carnivora;canidae;vulpes;vulpes;red fox")[1:]
        ['vulpes vulpes', 'red fox']
    """
    found = [name]
    parts = [part.strip() for part in name.split(";")]
    if len(parts) == 7:
        genus, species, common = parts[4:]
        scientific = f"{genus} {species}".strip()
        return [name, *(part for part in (scientific, common) if part)]
    match = re.fullmatch(r"(.+?)\s*\((.+)\)", name)
    if match:
        found += [match[1], match[2]]
    elif "_" in name and len(name.split("_")) == 2 and " " in name:
        found += name.split("_")  # BirdNET: "Turdus merula_Eurasian Blackbird"
    return found


def _folded(name: str) -> str:
    text = name.replace("\\u2019", "'").replace("\u2019", "'").replace("_", " ")
    return " ".join(text.casefold().split())


def target_prior(target: Target, names: ClassNames) -> Tensor:
    """Return the target prior, (C,); classes may have any spelling that is found."""
    num_classes = len(names.names)
    if not isinstance(target, str | os.PathLike):
        return as_target_prior(target, num_classes=num_classes)
    if is_file(target):
        return counts_prior(target, names, smoothing=0.0, allow_unknown=False)[0]
    shift = parse_target(str(target))
    found = [names.find(name) for name in shift.classes]
    if found and None not in found:
        known = [names.names[c] for c in found if c is not None]
        value = f":{shift.value:g}" if shift.kind == "tweak" else ""
        target = f"{shift.kind}:{','.join(known)}{value}"
        if shift.shares:
            pairs = zip(known, shift.shares, strict=True)
            target = ",".join(f"{name}={share!r}" for name, share in pairs)
    return as_target_prior(target, num_classes=num_classes, class_names=names.names)


def read_class_list(classes: Iterable[str] | str | os.PathLike[str]) -> list[str]:
    """Return names, or those in a text file with one name per line.

    Of a CSV file the first column counts; lines that begin with ``#`` do not.
    """
    if not isinstance(classes, str | os.PathLike):
        return [str(name) for name in classes]
    path = Path(classes)
    lines = [line.strip() for line in read_text(path).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if path.suffix.lower() == ".csv":
        lines = [row[0].strip() for row in csv.reader(lines)]
        if lines and lines[0].lower() in NAME_COLUMNS:
            lines = lines[1:]
    if not lines:
        raise ValueError(f"{path} names no class. Write one name per line.")
    return lines


def counts_prior(
    path: str | os.PathLike[str],
    names: ClassNames,
    *,
    smoothing: float,
    allow_unknown: bool,
) -> tuple[Tensor, list[str]]:
    """Return the prior of a file of counts, (C,), and its names that are not found.

    Args:
        path: A CSV or TSV file with a name and a count column (as GBIF and eBird
            export them), or any file of :func:`~tailshift.priors.read_counts`.
        names: Names of the model's classes.
        smoothing: Added to the count of each class.
        allow_unknown: Whether the file may name classes that the model does not have.
    """
    path = Path(path)
    rows = _name_count_rows(read_text(path))
    if rows is None:
        counts = read_counts(path, names.names).double()
        if len(counts) != len(names.names):
            raise ValueError(
                f"{path} has {len(counts)} counts, but the predictions have "
                f"{len(names.names)} classes. Give a CSV of names and counts."
            )
        return from_counts(counts + smoothing), []
    counts = torch.full((len(names.names),), smoothing, dtype=torch.float64)
    missing = []
    for name, count in rows:
        c = names.find(name)
        if c is None:
            missing.append(name)
        else:
            counts[c] += count
    if missing and not allow_unknown:
        raise ValueError(
            f"{path} counts {len(missing)} classes that the predictions do not have: "
            f"{names.describe_missing(missing)}"
        )
    if len(missing) == len(rows):
        raise ValueError(
            f"{path} counts no class of the predictions. The first is "
            f"{names.describe_missing(missing[:1])}"
        )
    return from_counts(counts), missing


def read_frequencies(path: Path, names: ClassNames) -> NDArray[np.float64]:
    """Return the frequency of each label in a table of names and frequencies, (C,)."""
    rows = _name_count_rows(read_text(path))
    if rows is None:
        raise ValueError(f"{path} must hold a name and a frequency per line.")
    ids = [names.find(name) for name, _ in rows]
    found = np.full(len(names.names), np.nan)
    for c, (name, value) in zip(ids, rows, strict=True):
        if c is None:
            raise ValueError(
                f"{path} has the unknown label {cut(repr(name))}"
                f"{names.suggestion(name) or '.'}"
            )
        found[c] = value
    missing = [names.names[c] for c in np.isnan(found).nonzero()[0]]
    if missing:
        raise ValueError(f"{path} has no frequency of {cut(repr(missing[0]))}.")
    return found


def _name_count_rows(text: str) -> list[tuple[str, float]] | None:
    """Return names and counts, None if the file is no table of these."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("The file of counts is empty.")
    delimiter = max(",\t;", key=lines[0].count)
    rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter))
    if min(len(row) for row in rows) < 2:
        return None
    header = [cell.strip().lower() for cell in rows[0]]
    name = next((header.index(n) for n in NAME_COLUMNS if n in header), None)
    count = next((header.index(n) for n in COUNT_COLUMNS if n in header), None)
    if name is None or count is None:
        return _plain_pairs(rows)
    return [(row[name].strip(), _count(row[count])) for row in rows[1:]]


def _plain_pairs(rows: list[list[str]]) -> list[tuple[str, float]] | None:
    """Return the pairs of a table of two columns, with or without a heading."""
    if any(len(row) != 2 for row in rows):
        raise ValueError(
            "The file of counts must have a column of names (such as "
            f"{', '.join(NAME_COLUMNS[:2])}) and one of counts (such as "
            f"{', '.join(COUNT_COLUMNS[:2])})."
        )
    try:
        float(rows[0][1])
    except ValueError:
        rows = rows[1:]
    return [(name.strip(), _count(value)) for name, value in rows]


def _count(text: str) -> float:
    try:
        value = float(text.strip() or "0")
    except ValueError:
        value = -1.0
    if not 0 <= value < 2**63:
        raise ValueError(f"Counts must be numbers >= 0, got {cut(repr(text), 40)}.")
    return value
