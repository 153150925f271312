"""Comparisons: our number of a cell beside the one that the paper prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from tailshift.evaluation.paper import PaperNumber

Quantity: TypeAlias = Literal["percent", "count", "setting"]


@dataclass(frozen=True)
class Comparison:
    """One cell of a table: ours and the paper's, in the paper's unit."""

    table: int
    row: str
    column: str
    ours_mean: float
    """Mean over the seeds there are; NaN where there is none."""
    ours_sd: float
    """Standard deviation over seeds (n − 1); 0 for one seed, NaN for none."""
    num_seeds: int
    """Runs behind the mean; 0 for what needs no run (Tables 1 and 7)."""
    paper: float
    """The printed number; NaN where none is printed."""
    quantity: Quantity = "percent"
    """How the numbers are written: 45.4, 10,847 or 0.005."""
    note: str = ""
    """What is known about the printed number; parts are separated by ``"; "``."""

    @property
    def difference(self) -> float:
        """Ours − the paper's, in points where both are in percent."""
        return self.ours_mean - self.paper


def compare(number: PaperNumber, values: Sequence[float]) -> Comparison:
    """Return a printed accuracy beside ours, one value in percent for each seed.

    Example:
        >>> from tailshift.evaluation.paper import paper_table
        >>> comparison = compare(paper_table(2).at("LADE", "100"), [45.0, 46.0])
        >>> round(comparison.difference, 2), round(comparison.ours_sd, 2)
        (0.1, 0.71)
    """
    nothing = float("nan")
    return Comparison(
        table=number.table,
        row=number.row,
        column=number.column,
        ours_mean=fmean(values) if values else nothing,
        ours_sd=stdev(values) if len(values) > 1 else 0.0 if values else nothing,
        num_seeds=len(values),
        paper=number.value,
        note=number.note,
    )
