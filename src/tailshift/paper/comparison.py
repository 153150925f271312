"""Comparisons: our number of a cell beside the one that the paper prints."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

from tailshift.config import RunConfig
from tailshift.data import DataShape
from tailshift.evaluation.records import deviation
from tailshift.metrics.table import METRICS
from tailshift.paper.numbers import BENCHMARKS, PaperNumber, paper_table

Quantity: TypeAlias = Literal["percent", "score", "count", "setting"]


@dataclass(frozen=True)
class Comparison:
    """One cell of a table: ours and the paper's, in the paper's unit."""

    table: int
    row: str
    column: str
    ours_mean: float
    """Mean over the seeds there are; NaN if there is none."""
    ours_sd: float
    """Standard deviation over seeds (n − 1); 0 for one seed, NaN for none."""
    num_seeds: int
    """Runs behind the mean; 0 for what needs no run (Tables 1 and 7)."""
    paper: float
    """The printed number; NaN if none is printed."""
    quantity: Quantity = "percent"
    """How the numbers are written: 45.4, 0.148, 10,847 or 0.005."""
    decimals: int = 1
    """Digits after the point of a percentage or a score, as the paper prints them."""
    is_high_better: bool = True
    """Whether the highest number of a column is the best."""
    note: str = ""
    """What is known about the printed number; parts are separated by ``"; "``."""
    subset_sd: float = math.nan
    """Standard deviation of our accuracy over test sets with the same counts, in
    points, the mean over seeds; NaN if it is not known."""
    standard_error: float = math.nan
    """Standard error of our accuracy over test images, likewise."""

    @property
    def difference(self) -> float:
        """Ours − the paper's, in points if both are in percent."""
        return self.ours_mean - self.paper


def compare(
    number: PaperNumber,
    values: Sequence[float],
    metric: str = "accuracy",
    *,
    subset_sd: float = math.nan,
    standard_error: float = math.nan,
) -> Comparison:
    """Return a printed score beside ours, one value for each seed.

    Args:
        number: A cell of a table of the paper.
        values: Ours, in the paper's unit.
        metric: The score: a name of :data:`~tailshift.metrics.METRICS`.
        subset_sd: Standard deviation of ours over test sets with the same counts.
        standard_error: Standard error of ours over test images.

    Example:
        >>> from tailshift.paper.numbers import paper_table
        >>> comparison = compare(paper_table(2).at("LADE", "100"), [45.0, 46.0])
        >>> round(comparison.difference, 2), round(comparison.ours_sd, 2)
        (0.1, 0.71)
    """
    nothing = float("nan")
    shown = METRICS.get(metric)
    return Comparison(
        table=number.table,
        row=number.row,
        column=number.column,
        ours_mean=fmean(values) if values else nothing,
        ours_sd=deviation(values) if len(values) > 1 else 0.0 if values else nothing,
        num_seeds=len(values),
        paper=number.value,
        quantity="percent" if shown.is_percent else "score",
        decimals=_printed_decimals(number),
        is_high_better=shown.is_high_better,
        note=number.note,
        subset_sd=subset_sd,
        standard_error=standard_error,
    )


def _printed_decimals(number: PaperNumber) -> int:
    """Return the digits after the point in the paper's column."""
    printed = [
        cell.text
        for cell in paper_table(number.table).numbers
        if cell.column == number.column
    ]
    return max(len(text.partition(".")[2]) for text in printed)


def compare_data_sets(configs: Mapping[str, RunConfig]) -> list[Comparison]:
    """Return Table 1, with a row for each of CIFAR-100-LT's imbalance ratios.

    Args:
        configs: Configurations of LADE, by the recipe's name.
    """
    cells = []
    for number in paper_table(1).numbers:
        for row, benchmark, paper in _printed_facts(number):
            config = configs.get(BENCHMARKS[benchmark].format("lade"))
            shape = config.data.known_shape() if config else None
            ours = _fact(shape, number.column) if shape else math.nan
            cells.append(_plain(number, row, ours, paper, "count"))
    return cells


def _fact(shape: DataShape, column: str) -> float:
    return {
        "Classes": shape.num_classes,
        "Samples": shape.num_samples,
        "Imbalance ratio": shape.imbalance_ratio,
    }[column]


def _printed_facts(number: PaperNumber) -> list[tuple[str, str, float]]:
    """Return (row, benchmark, printed value); CIFAR-100-LT's row stands for three."""
    if number.row != "CIFAR-100-LT":
        return [(number.row, number.row, number.value)]
    ratios = re.findall(r"\d+", paper_table(1).at(number.row, "Imbalance ratio").text)
    return [
        (
            f"{number.row}, ratio {ratio}",
            f"{number.row} (IB {ratio})",
            float(ratio) if math.isnan(number.value) else number.value,
        )
        for ratio in ratios
    ]


def compare_settings(configs: Mapping[str, RunConfig]) -> list[Comparison]:
    """Return Table 7: the settings of the recipes.

    Args:
        configs: Configurations of LADE, by the recipe's name.
    """
    cells = []
    for number in paper_table(7).numbers:
        config = configs.get(BENCHMARKS[number.row].format("lade"))
        ours = math.nan
        if config is not None:
            ours = {
                "λ": getattr(config.method, "lam", math.nan),
                "α": getattr(config.method, "alpha", math.nan),
                "Batch size": config.train.batch_size,
            }[number.column]
        cells.append(_plain(number, number.row, ours, number.value, "setting"))
    return cells


def _plain(
    number: PaperNumber, row: str, ours: float, paper: float, quantity: Quantity
) -> Comparison:
    """Return a comparison of what needs no run."""
    return Comparison(
        table=number.table,
        row=row,
        column=number.column,
        ours_mean=float(ours),
        ours_sd=math.nan,
        num_seeds=0,
        paper=paper,
        quantity=quantity,
        note=number.note,
    )
