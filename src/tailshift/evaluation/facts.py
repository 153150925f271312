"""Tables 1 and 7: what the data and the recipes are, beside what the paper says."""

import math
import re
from collections.abc import Mapping

from tailshift.config import RunConfig
from tailshift.evaluation.comparison import Comparison, Quantity
from tailshift.evaluation.paper import PaperNumber, paper_table
from tailshift.evaluation.sources import BENCHMARKS
from tailshift.training.data_shape import DataShape, known_shape


def compare_data_sets(configs: Mapping[str, RunConfig]) -> list[Comparison]:
    """Return Table 1, with a row for each of CIFAR-100-LT's imbalance ratios.

    Args:
        configs: Those of LADE, by the recipe's name.
    """
    cells = []
    for number in paper_table(1).numbers:
        for row, benchmark, paper in _printed_facts(number):
            config = configs.get(BENCHMARKS[benchmark].format("lade"))
            shape = known_shape(config.data) if config else None
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
        configs: Those of LADE, by the recipe's name.
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
