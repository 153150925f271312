"""Tables of predictions: their rows, and CSV or Parquet files of them."""

import csv
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO, TypeAlias

from torch import Tensor

from tailshift.compensation import post_compensate
from tailshift.files import atomic_write
from tailshift.priors import VectorLike
from tailshift.text import csv_cell, printable

TOP = 5
SUFFIXES = (".csv", ".parquet")
AnswerRow: TypeAlias = dict[str, str | float]


def answer_rows(
    paths: Sequence[str],
    logits: Tensor,
    class_names: Sequence[str],
    *,
    logit_prior: VectorLike,
    target_prior: VectorLike,
) -> list[AnswerRow]:
    """Return a row for each image: the five likeliest classes under the target prior.

    Args:
        paths: One for each image.
        logits: They carry ``logit_prior``, shape (N, C).
        class_names: One for each class.
        logit_prior: The prior that the logits carry, shape (C,).
        target_prior: :math:`p_t` to answer for, shape (C,).

    Example:
        >>> import torch
        >>> even = [0.5, 0.5]
        >>> answer_rows(
        ...     ["a.jpg"],
        ...     torch.tensor([[1.0, 0.0]]),
        ...     ["cat", "dog"],
        ...     logit_prior=even,
        ...     target_prior=[0.25, 0.75],
        ... )[0]["predicted"]
        'dog'
    """
    probs = post_compensate(
        logits.double(), logit_prior=logit_prior, target_prior=target_prior
    ).softmax(dim=1)
    return table_rows(paths, probs, class_names)


def table_rows(
    paths: Sequence[str], probs: Tensor, class_names: Sequence[str]
) -> list[AnswerRow]:
    """Return a row per image: the five most likely classes of probabilities (N, C)."""
    best = probs.topk(min(TOP, probs.shape[1]), dim=1)
    rows = []
    for path, shares, classes in zip(
        paths, best.values.tolist(), best.indices.tolist(), strict=True
    ):
        row: AnswerRow = {"path": path}
        for rank, (share, c) in enumerate(zip(shares, classes, strict=True), start=1):
            name, probability = columns(rank)
            row |= {name: class_names[c], probability: share}
        rows.append(row)
    return rows


def columns(rank: int) -> tuple[str, str]:
    """Return the names of the two columns of the class of a rank, 1 the likeliest.

    Example:
        >>> columns(1), columns(2)
        (('predicted', 'probability'), ('class_2', 'probability_2'))
    """
    if rank == 1:
        return "predicted", "probability"
    return f"class_{rank}", f"probability_{rank}"


def check_output(path: Path) -> None:
    """Refuse a file that is neither CSV nor Parquet."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"`output` must end in {' or '.join(SUFFIXES)}, but is {path}."
        )


def write_answers(path: Path, rows: Sequence[AnswerRow]) -> None:
    """Write rows as CSV or Parquet, by the file's suffix, whole or not at all."""
    check_output(path)
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".csv":
            with temporary.open("w", newline="", encoding="utf-8") as file:
                print_answers(file, rows)
        else:
            _write_parquet(temporary, rows)


def print_answers(file: TextIO, rows: Sequence[AnswerRow]) -> None:
    """Write rows as CSV to an open file; six decimals of a probability."""
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _text(value) for key, value in row.items()})


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return csv_cell(value)
    return str(value) if isinstance(value, int) else f"{value:.6f}"


def _write_parquet(path: Path, rows: Sequence[Mapping[str, str | float]]) -> None:
    try:
        arrow, parquet = map(import_module, ("pyarrow", "pyarrow.parquet"))
    except ImportError:
        raise ModuleNotFoundError(
            "Parquet tables need the package pyarrow, which is not installed. Install "
            "it with `pip install tailshift[datasets]`, or write a .csv file."
        ) from None
    texts = [
        {k: printable(v) if isinstance(v, str) else v for k, v in row.items()}
        for row in rows
    ]
    parquet.write_table(arrow.Table.from_pylist(texts), path)
