"""Which columns of a table are class scores, classes, keys and labels."""

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tailshift.registry import did_you_mean
from tailshift.retarget.scores import ROW_SUM_TOLERANCE, ScoreArray
from tailshift.text import cut

KEY_COLUMNS = (
    *("observationid", "image", "file", "filename", "filepath", "path", "image_id"),
    *("mediaid", "media_id", "sample", "id", "key"),
)
CLASS_COLUMNS = (
    *("class", "class_name", "label", "species", "scientificname", "scientific name"),
    *("scientific_name", "category", "taxon", "prediction", "predicted_class"),
    *("common name", "common_name", "name"),
)
SCORE_COLUMNS = (
    *("classificationprobability", "score", "confidence", "probability", "prob"),
    *("conf", "logit", "logprob", "log_prob"),
)
START_COLUMNS = ("start", "start (s)", "begin time (s)", "end", "end (s)")
LABEL_COLUMNS = ("label", "labels", "true", "truth", "true_label", "y", "class")
NUMBER_COLUMNS = (
    *("lat", "latitude", "lon", "lng", "longitude", "id", "index", "year", "month"),
    *("day", "hour", "time", "timestamp", "site", "width", "height", "label", "y"),
    *("", "unnamed: 0", "row", "target", "temperature", "altitude", "elevation"),
)
"""Columns of numbers that are no class scores, in lower case."""
PREFIXES = ("prob_", "probability_", "p_", "score_", "logit_", "logits_", "prob.", "p.")


class LongColumns(NamedTuple):
    """Positions of the columns of a table with one row per class."""

    keys: tuple[int, ...]
    class_name: int
    score: int


def long_columns(header: Sequence[str]) -> LongColumns | None:
    """Return the columns of a table with one class per row, None if it has none.

    Example:
        >>> long_columns(["image", "class", "score"])
        LongColumns(keys=(0,), class_name=1, score=2)
    """
    names = [name.strip().lower() for name in header]
    score = _first(names, SCORE_COLUMNS)
    class_name = _first(names, CLASS_COLUMNS)
    if score is None or class_name is None:
        return None
    key = _first(names, KEY_COLUMNS)
    others = tuple(i for i in range(len(names)) if i not in (score, class_name))
    if key is None:
        return LongColumns(others, class_name, score)
    starts = [i for i in others if names[i] in START_COLUMNS and i != key]
    if names[key] == "observationid":
        starts = []
    return LongColumns((key, *starts), class_name, score)


def _first(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def label_position(header: Sequence[str], label_column: str | None) -> int | None:
    """Return the position of the column of labels, None if there is none."""
    if label_column is not None:
        if label_column not in header:
            hint = did_you_mean(label_column, list(header)) or "."
            raise ValueError(f"There is no column {label_column!r} of labels{hint}")
        return list(header).index(label_column)
    names = [name.strip().lower() for name in header]
    return _first(names, LABEL_COLUMNS)


def class_columns(
    header: Sequence[str], sample: Sequence[Sequence[str]], asked: str | None
) -> list[int]:
    """Return the positions of the columns that hold class scores.

    Args:
        header: Names of all columns.
        sample: Texts of some rows.
        asked: What the user says, see :class:`~tailshift.retarget.tables.TableLayout`.

    Example:
        >>> class_columns(
        ...     ["image", "lat", "cat", "dog"], [["a.jpg", "12", "0.9", "0.1"]], None
        ... )
        [2, 3]
    """
    if asked is not None:
        return _asked_columns(header, asked)
    values = np.array([[_number(cell) for cell in row] for row in sample]).T
    if not len(values):
        raise ValueError("The table has a heading but no row.")
    share = np.isfinite(values).mean(axis=1)
    numeric = [
        i
        for i, name in enumerate(header)
        if share[i] > 0.5 and name.strip().lower() not in NUMBER_COLUMNS
    ]
    prefixed = _prefixed(header, numeric)
    return prefixed or _simplex_run(values, numeric) or numeric


def _asked_columns(header: Sequence[str], asked: str) -> list[int]:
    if ":" in asked and asked not in header:
        ends = [end.strip() for end in asked.split(":", 1)]
        missing = [end for end in ends if end not in header]
        if not missing:
            first, last = (list(header).index(end) for end in ends)
            return list(range(first, last + 1))
    parts = [part.strip() for part in asked.split(",")]
    missing = [p for p in parts if not any(fnmatchcase(name, p) for name in header)]
    if missing:
        hint = did_you_mean(missing[0], list(header)) or "."
        raise ValueError(
            f"`class_columns` {cut(repr(asked))} names no column "
            f"{cut(repr(missing[0]))}{hint}"
        )
    return [i for i, n in enumerate(header) if any(fnmatchcase(n, p) for p in parts)]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _prefixed(header: Sequence[str], numeric: list[int]) -> list[int]:
    """Return the numeric columns that share a prefix such as ``prob_``."""
    for prefix in PREFIXES:
        found = [i for i in numeric if header[i].lower().startswith(prefix)]
        if len(found) > 1:
            return found
    return []


def _simplex_run(values: ScoreArray, numeric: list[int]) -> list[int]:
    """Return the longest run of neighbouring columns whose rows sum to 1."""
    gaps = [i for i, (a, b) in enumerate(pairwise(numeric), 1) if b != a + 1]
    bounds = [0, *gaps, len(numeric)]
    runs = [numeric[a:b] for a, b in pairwise(bounds)]
    for run in sorted(runs, key=len, reverse=True):
        sums = np.nan_to_num(values[run]).cumsum(axis=0)  # (run, rows)
        sums = np.concatenate([np.zeros_like(sums[:1]), sums])
        for first in range(len(run)):
            total = sums[len(run)] - sums[first]
            near = np.abs(total - 1) <= ROW_SUM_TOLERANCE
            inside = (values[run[first:]] >= 0).all() if near.any() else False
            if near.mean() > 0.5 and inside and len(run) - first > 1:
                return run[first:]
    return []


def class_names_of(header: Sequence[str], columns: Sequence[int]) -> tuple[str, ...]:
    """Return class names: the column names without the prefix that all share."""
    names = [header[i].strip() for i in columns]
    for prefix in PREFIXES:
        if all(name.lower().startswith(prefix) for name in names):
            names = [name[len(prefix) :] for name in names]
            break
    check_distinct(names)
    return tuple(names)


def check_distinct(names: Sequence[str]) -> None:
    """Raise if two classes have the same name."""
    if len(set(names)) < len(names):
        name, _ = Counter(names).most_common(1)[0]
        raise ValueError(
            f"Two classes have the name {cut(repr(name))}. Class names must be "
            "different."
        )
