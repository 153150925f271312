"""Which recipe and which inference stand behind each cell of the paper's tables."""

import math
from dataclasses import dataclass

from tailshift.methods import METHODS
from tailshift.metrics.table import METRICS
from tailshift.paper.numbers import PaperNumber, PaperTable

PRINTED_METHODS = {
    "Balanced Softmax": "balanced_softmax",
    "BBN": "bbn",
    "Causal Norm": "causal_norm",
    "CB-Focal": "cb_focal",
    "Decouple-cRT": "crt",
    "Decouple-LWS": "lws",
    "Decouple-τ-norm": "tau_norm",
    "Focal Loss": "focal",
    "LADE": "lade",
    "LDAM": "ldam",
    "LDAM+DRW": "ldam_drw",
    "MiSLAS": "mislas",
    "OLTR": "oltr",
    "SADE": "sade",
    "Softmax": "softmax",
}
"""Registered names of the methods, by what the paper's tables call them."""

BENCHMARKS = {
    "CIFAR-100-LT (IB 10)": "cifar100_lt_ir10_{}",
    "CIFAR-100-LT (IB 50)": "cifar100_lt_ir50_{}",
    "CIFAR-100-LT (IB 100)": "cifar100_lt_ir100_{}",
    "Places-LT": "places_lt_{}",
    "ImageNet-LT": "imagenet_lt_{}_180ep",
    "iNaturalist 2018": "inaturalist2018_{}",
}
"""The rows of Tables 7 and 8: the recipe's name around the method's."""

ABLATIONS = {"LADE": "lade", "λ = 0": "lade_lambda0", "α = 0": "lade_alpha0"}
_SHIFTED, _CALIBRATION = (6, 9), (10, 11)  # numbers of tables
UNPRINTED = "PC Causal Norm", "PC Balanced Softmax"
"""Rows that Tables 10 and 11 do not have."""


@dataclass(frozen=True)
class Source:
    """Where our number of a cell comes from."""

    recipe: str
    is_compensated: bool
    """Whether the logits are compensated to the target."""
    metric: str = "accuracy"
    """Attribute of :class:`~tailshift.evaluation.records.Record`."""
    target: str = "uniform"
    """The label distribution of the test set."""


def source_of(number: PaperNumber) -> Source:
    """Return the source of a cell of Tables 2 to 6 or 8 to 11.

    The recipe of a method that is not there yet is named all the same.

    Example:
        >>> from tailshift.paper.numbers import paper_table
        >>> source = source_of(paper_table(2).at("PC Softmax", "100"))
        >>> source.recipe, source.is_compensated, source.metric
        ('cifar100_lt_ir100_softmax', True, 'accuracy')
    """
    if number.table == 8:
        recipe = BENCHMARKS[number.row].format(ABLATIONS[number.column])
        return Source(recipe, is_compensated=True)
    title, _, epochs = number.row.partition(", ")
    method = PRINTED_METHODS[title.removeprefix("PC ")]
    is_compensated = title.startswith("PC ") or METHODS.get(method).compensates
    if number.table in _SHIFTED:
        recipe = _shifted_recipe(number.table, method)
        return Source(recipe, is_compensated, target=number.column)
    if number.table in _CALIBRATION:
        recipe = _shifted_recipe(number.table, method)
        return Source(recipe, is_compensated, _metric(number.column))
    if number.table == 2:
        method = "ldam_drw" if method == "ldam" else method  # its numbers, see the note
        return Source(f"cifar100_lt_ir{number.column}_{method}", is_compensated)
    recipe = {
        3: f"places_lt_{method}",
        4: f"imagenet_lt_{method}_{epochs.removesuffix(' epochs')}ep",
        5: f"inaturalist2018_{method}",
    }[number.table]
    return Source(recipe, is_compensated, _metric(number.column))


def _metric(column: str) -> str:
    """Return the metric that one of the paper's columns shows."""
    return next(m.name for _, m in METRICS.items() if column in (m.column, m.title))


def _shifted_recipe(table: int, method: str) -> str:
    if table in (6, 11):
        return f"imagenet_lt_{method}_180ep"
    return f"cifar100_lt_ir50_{method}"


def asked_numbers(table: PaperTable) -> tuple[PaperNumber, ...]:
    """Return the cells that we fill: the printed ones, and every PC variant.

    Example:
        >>> from tailshift.paper.numbers import paper_table
        >>> asked_numbers(paper_table(10))[-1].row
        'PC Balanced Softmax'
    """
    if table.number not in _CALIBRATION:
        return table.numbers
    note = "not in the paper: its logits carry the uniform prior, PC changes nothing"
    return table.numbers + tuple(
        PaperNumber(table.number, row, column, math.nan, "", note)
        for row in UNPRINTED
        for column in table.columns
    )
