"""A uniform sample of the rows of a table, drawn in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailshift.retarget.scores import (
    ScoreArray,
    ScoreKind,
    log_scores,
    recognise_scores,
    row_faults,
)
from tailshift.retarget.tables import Table

MAX_ROWS = 200_000
MAX_ELEMENTS = 2**25  # 256 MB of float64
RECOGNISED_ROWS = 10_000


@dataclass(frozen=True, eq=False)
class RowSample:
    """Rows of a table, in their order.

    Attributes:
        scores: Shape (n, C).
        sites: Site of each row; empty without a site column.
        num_rows: Number of rows of the whole table that can be used.
    """

    scores: ScoreArray
    sites: Sequence[str]
    num_rows: int

    def log_scores(
        self, kind: ScoreKind, logit_prior: ScoreArray, scale: float = 1.0
    ) -> ScoreArray:
        """Return log probabilities, up to a constant per row, shape (n, C)."""
        return log_scores(self.scores, kind, logit_prior, scale)


def first_rows(table: Table) -> ScoreArray:
    """Return the first rows, by which the kind of the scores is recognised."""
    chunk = next(iter(table.chunks()))
    return chunk.scores[:RECOGNISED_ROWS]


def kind_of(table: Table, asked: ScoreKind | None, scores: ScoreArray) -> ScoreKind:
    """Return the kind of the scores: asked for, said by the format, or recognised."""
    found = asked or table.kind
    return found or recognise_scores(scores, is_partial=table.is_partial)


def draw_sample(
    table: Table, kind: ScoreKind, *, site_column: str | None = None, seed: int = 0
) -> RowSample:
    """Return a uniform sample of at most 200,000 rows; broken rows are left out.

    Each row gets a random number, and those with the smallest are kept, so the number
    of rows need not be known before.
    """
    most = max(1, min(MAX_ROWS, MAX_ELEMENTS // max(1, len(table.class_names))))
    rng = np.random.default_rng(seed)
    keys, kept = np.empty(0), np.empty((0, len(table.class_names)))
    sites = np.empty(0, dtype=object)
    order = np.empty(0, dtype=np.int64)
    total = 0
    for chunk in table.chunks():
        faults = row_faults(chunk.scores, kind, is_partial=table.is_partial)
        usable = np.ones(len(chunk.scores), dtype=bool)
        usable[list(faults)] = False
        rows = usable.nonzero()[0]
        total += len(rows)
        drawn = rng.random(len(rows))
        if len(keys) >= most:
            rows, drawn = rows[drawn < keys.max()], drawn[drawn < keys.max()]
        keys = np.concatenate([keys, drawn])
        kept = np.concatenate([kept, chunk.scores[rows]])
        order = np.concatenate([order, chunk.start + rows])
        if site_column is not None:
            names = np.array(chunk.columns[site_column], dtype=object)[rows]
            sites = np.concatenate([sites, names])
        if len(keys) > most:
            chosen = np.sort(np.argpartition(keys, most)[:most])
            keys, kept, order = keys[chosen], kept[chosen], order[chosen]
            sites = sites[chosen] if site_column is not None else sites
    if not len(kept):
        raise ValueError("No row of the predictions can be used.")
    return RowSample(kept, sites.tolist(), total)
