"""Labelled rows of a model, to calibrate its predictions on."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tailshift.files import read_text
from tailshift.retarget.arrays import LABELS, ArrayTable
from tailshift.retarget.columns import label_position
from tailshift.retarget.delimited import CSV_DELIMITERS
from tailshift.retarget.names import ClassNames
from tailshift.retarget.scores import ScoreArray, ScoreKind, row_faults
from tailshift.retarget.tables import (
    HEAD_BYTES,
    FilePath,
    Table,
    TableLayout,
    open_table,
)
from tailshift.text import cut

MAX_LABELS_FILE = 2**30


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Scores and labels.

    Attributes:
        scores: Shape (n, C).
        labels: Class ids, shape (n,).
        are_targets: Whether the rows are among those that are re-targeted.
    """

    scores: ScoreArray
    labels: NDArray[np.int64]
    are_targets: bool = False


def read_labelled(
    path: FilePath, table: Table, kind: ScoreKind, label_column: str | None
) -> LabelledRows:
    """Return labelled rows of the model that the predictions are from.

    Args:
        path: A file of predictions with a column of labels; or a CSV with a label
            column and a column that the predictions have too, such as the image.
        table: The predictions.
        kind: Kind of their scores.
        label_column: Name of the column of labels, if its name does not tell.
    """
    names = ClassNames(table.class_names)
    keyed = _keyed_labels(Path(path), table, label_column)
    if keyed is not None:
        return _joined(path, table, kind, names, *keyed)
    other = open_table(path, TableLayout(label_column=label_column or "label"))
    scores, texts = _scores_and_labels(other, label_column)
    scores = _in_order(scores, other, names, path)
    faults = row_faults(scores, kind, is_partial=table.is_partial)
    texts = ["" if i in faults else text for i, text in enumerate(texts)]
    return _known(scores, texts, names, path, are_targets=False)


def _keyed_labels(
    path: Path, table: Table, label_column: str | None
) -> tuple[str, dict[str, str]] | None:
    """Return the shared column and the label of each of its values, if so given."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} of labels.")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if b"\x00" in head or head.lstrip()[:1] in (b"{", b"["):
        return None
    lines = read_text(path, most=MAX_LABELS_FILE).splitlines()
    delimiter = max(CSV_DELIMITERS, key=(lines or [""])[0].count)
    rows = csv.reader(lines, delimiter=delimiter)
    header = [cell.strip() for cell in next(rows, [])]
    shared = [name for name in header if name in table.column_names]
    scored = len(set(header) & set(table.class_names))
    label = label_position(header, label_column)
    shared = [name for name in shared if label is None or name != header[label]]
    if not shared or scored > 1:
        return None
    if label is None:
        raise ValueError(
            f"{path} has no column of labels. Name it (`label_column`, --label-column)."
        )
    key = header.index(shared[0])
    full = [row for row in rows if len(row) > max(key, label)]
    return shared[0], {row[key]: row[label].strip() for row in full}


def _joined(
    path: FilePath,
    table: Table,
    kind: ScoreKind,
    names: ClassNames,
    key: str,
    labels: dict[str, str],
) -> LabelledRows:
    """Return the rows of the predictions whose key has a label."""
    scores, texts = [], []
    for chunk in table.chunks():
        faults = row_faults(chunk.scores, kind, is_partial=table.is_partial)
        for i, value in enumerate(chunk.columns[key]):
            if labels.get(value) and i not in faults:
                scores.append(chunk.scores[i])
                texts.append(labels[value])
    if not scores:
        raise ValueError(
            f"{path} labels no row of the predictions: no value of its column {key!r} "
            "is in theirs."
        )
    return _known(np.stack(scores), texts, names, path, are_targets=True)


def _scores_and_labels(
    table: Table, label_column: str | None
) -> tuple[ScoreArray, list[str]]:
    if isinstance(table, ArrayTable):
        column = label_column or LABELS
    else:
        position = label_position(table.column_names, label_column)
        column = "" if position is None else table.column_names[position]
    if column not in table.column_names:
        raise ValueError(
            "The file of labels must have a column of labels next to the scores, or a "
            "column that the predictions have too, such as the image. Name the labels "
            "(`label_column`, --label-column)."
        )
    chunks = list(table.chunks())
    scores = np.concatenate([chunk.scores for chunk in chunks])
    return scores, [text for chunk in chunks for text in chunk.columns[column]]


def _in_order(
    scores: ScoreArray, other: Table, names: ClassNames, path: FilePath
) -> ScoreArray:
    """Return the scores in the order of the predictions' classes."""
    if other.class_names == names.names:
        return scores
    position = {name: c for c, name in enumerate(other.class_names)}
    missing = [name for name in names.names if name not in position]
    if missing:
        raise ValueError(
            f"{path} has no scores of {len(missing)} classes of the predictions, such "
            f"as {cut(repr(missing[0]))}. Both must come from one model."
        )
    return scores[:, [position[name] for name in names.names]]


def _known(
    scores: ScoreArray,
    texts: list[str],
    names: ClassNames,
    path: FilePath,
    *,
    are_targets: bool,
) -> LabelledRows:
    """Return the rows that have a label, as class ids."""
    kept, labels = [], []
    for i, text in enumerate(texts):
        label = text.strip()
        if not label:
            continue
        c = names.find(label)
        if c is None and label.isdigit() and int(label) < len(names.names):
            c = int(label)
        if c is None:
            raise ValueError(
                f"{path} has the unknown label {cut(repr(label))}"
                f"{names.suggestion(label) or '.'}"
            )
        kept.append(i)
        labels.append(c)
    if not kept:
        raise ValueError(f"{path} has no label.")
    return LabelledRows(scores[kept], np.array(labels, dtype=np.int64), are_targets)
