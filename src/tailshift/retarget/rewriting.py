"""One pass over a file of predictions, which writes it with new scores."""

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailshift.files import atomic_write
from tailshift.retarget.plan import RetargetPlan
from tailshift.retarget.scores import RetargetRule, ScoreArray, ScoreKind, row_faults
from tailshift.retarget.tables import Chunk, FilePath, Table
from tailshift.text import csv_cell

MAX_NAMED_ROWS = 5
RollUp: TypeAlias = Callable[[ScoreArray], list[tuple[str, float]]]


class TableRewriter:
    """One pass over a table that writes it with new scores.

    Args:
        table: The predictions.
        kind: Kind of their scores.
        plan: Which rule holds for which rows.
        site_column: Column of sites, if each has a rule of its own.
        roll_up: Returns the most specific sure node of rows of probabilities.
    """

    def __init__(
        self,
        table: Table,
        kind: ScoreKind,
        plan: RetargetPlan,
        site_column: str | None,
        roll_up: RollUp | None = None,
    ) -> None:
        self.table, self.kind, self.plan = table, kind, plan
        self.site_column = site_column
        self.broken: dict[int, str] = {}
        self.num_rows = self.num_partial = 0
        self.roll_up = roll_up
        self._nodes: list[tuple[int, str, float]] = []

    def write(self, output: FilePath | None, skip_broken: bool) -> None:
        """Write the table, whole or not at all."""
        target = nullcontext(Path()) if output is None else atomic_write(Path(output))
        with target as path:
            self.table.write(path, self._parts())
            if self.broken and not skip_broken:
                raise ValueError(self._complaint())

    def _parts(self) -> Iterator[tuple[Chunk, ScoreArray]]:
        for chunk in self.table.chunks():
            yield chunk, self._rescored(chunk)

    def _rescored(self, chunk: Chunk) -> ScoreArray:
        scores = chunk.scores
        self.num_rows += len(scores)
        faults = row_faults(scores, self.kind, is_partial=self.table.is_partial)
        self.broken |= {chunk.start + i + 1: fault for i, fault in faults.items()}
        usable = np.ones(len(scores), dtype=bool)
        usable[list(faults)] = False
        if not faults and self.site_column is None and not self.table.is_partial:
            found = self.plan.rule(scores)
            if self.roll_up is not None:
                self._add_nodes(chunk.start, usable, found)
            return found
        missing = np.isnan(scores[usable])
        self.num_partial += int(missing.any(axis=1).sum())
        found = np.full_like(scores, np.nan)
        for rows, rule in self._rules(chunk, usable):
            found[rows] = rule(scores[rows])
        if self.roll_up is not None:
            self._add_nodes(chunk.start, usable, found)
        if missing.any():  # what a row does not name is not written
            found[usable] = np.where(missing, np.nan, found[usable])
        return found

    def write_nodes(self, path: Path) -> None:
        """Write the most specific sure node of each usable row as CSV."""
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("row", "node", "probability"))
        writer.writerows((row, csv_cell(n), p) for row, n, p in self._nodes)
        with atomic_write(path) as temporary:
            temporary.write_text(lines.getvalue(), encoding="utf-8")

    def _add_nodes(
        self, start: int, usable: NDArray[np.bool_], found: ScoreArray
    ) -> None:
        assert self.roll_up is not None
        p = found[usable]
        if self.kind == "logits":
            p = np.exp(p - p.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
        elif self.kind == "log_probabilities":
            p = np.exp(p)
        rows = usable.nonzero()[0] + start + 1
        pairs = zip(rows.tolist(), self.roll_up(p), strict=True)
        self._nodes += [(row, node, value) for row, (node, value) in pairs]

    def _rules(self, chunk: Chunk, usable: Any) -> Iterator[tuple[Any, RetargetRule]]:
        """Yield the rows of each site, as a mask, with its rule."""
        if self.site_column is None:
            everything = bool(usable.all())
            yield (slice(None) if everything else usable), self.plan.rule
            return
        sites = np.array(chunk.columns[self.site_column], dtype=object)
        for site in set(sites[usable].tolist()):
            rule = self.plan.sites.get(str(site), self.plan.rule)
            yield usable & (sites == site), rule

    @property
    def notes(self) -> list[str]:
        """What a user should know about the rows."""
        found = []
        if self.num_partial:
            found.append(
                f"{self.num_partial:,} rows have the largest scores only; the rest of "
                "their mass is spread over the other classes by the logit prior."
            )
        if self.broken:
            found.append(f"{self._complaint(skipped=True)}")
        return found

    def _complaint(self, *, skipped: bool = False) -> str:
        shown = [
            f"row {row} {fault}"
            for row, fault in list(self.broken.items())[:MAX_NAMED_ROWS]
        ]
        more = len(self.broken) - len(shown)
        rows = ", ".join(shown) + (f" and {more:,} more" if more else "")
        count = f"{len(self.broken):,} of {self.num_rows:,} rows"
        if skipped:
            return f"{count} are unusable and left as they were: {rows}."
        return (
            f"{count} are unusable as {self.kind.replace('_', ' ')}: {rows}. Fix them, "
            "leave them as they are (`skip_broken`, --skip-broken), or name another "
            "kind of scores (`scores`, --scores)."
        )
