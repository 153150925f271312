"""What the paper prints, and which recipe and inference stand behind each number."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tailshift.methods import METHODS
from tailshift.metrics.table import METRICS
from tailshift.registry import did_you_mean


@dataclass(frozen=True)
class PaperNumber:
    """One cell of one of the paper's tables."""

    table: int
    """Number of the table, 1 to 11."""
    row: str
    """The method or the data set."""
    column: str
    """What is measured, or on which data."""
    value: float
    """The number, ``186K`` as 186 000; NaN if several are printed."""
    text: str
    """The number as it is printed."""
    note: str
    """Whose run it is, or what else is known about it."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    number: int
    title: str
    corner: str
    """What a row is: the heading above the rows' names."""
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    numbers: tuple[PaperNumber, ...]
    """Row by row."""

    def at(self, row: str, column: str) -> PaperNumber:
        """Return the number in a row and column.

        Example:
            >>> lade = paper_table(2).at("LADE", "100")
            >>> lade.value, lade.note
            (45.4, "authors' own run")
        """
        self._check("row", row, self.rows)
        self._check("column", column, self.columns)
        return self.numbers[
            self.rows.index(row) * len(self.columns) + self.columns.index(column)
        ]

    def _check(self, name: str, value: str, known: Sequence[str]) -> None:
        if value not in known:
            hint = did_you_mean(value, list(known)) or ";"
            raise ValueError(
                f"`{name}` {value!r} is not in Table {self.number}{hint} "
                f"Known: {', '.join(known)}"
            )


def paper_table(number: int) -> PaperTable:
    """Return one of the paper's tables.

    Args:
        number: 1 data sets, 2 CIFAR-100-LT, 3 Places-LT, 4 ImageNet-LT,
            5 iNaturalist 2018, 6 shifted ImageNet-LT, 7 settings, 8 ablation,
            9 shifted CIFAR-100-LT, 10 and 11 calibration.

    Example:
        >>> table = paper_table(8)
        >>> table.title, table.columns
        ('Ablation: top-1 accuracy in % of LADE', ('LADE', 'λ = 0', 'α = 0'))
    """
    tables = _read_tables()
    if number not in tables:
        raise ValueError(
            f"`number` must be that of a table of the paper, 1 to {len(tables)}, "
            f"but is {number}."
        )
    return tables[number]


@cache
def _read_tables() -> dict[int, PaperTable]:
    file = resources.files("tailshift") / "paper" / "tables.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    numbered = (
        (int(key.removeprefix("table")), value) for key, value in content.items()
    )
    return {number: _table(number, entry) for number, entry in numbered}


def _table(number: int, entry: Mapping[str, Any]) -> PaperTable:
    columns = tuple(entry["columns"])
    notes = _notes(entry)
    numbers = [
        PaperNumber(
            number, row, column, _value(text), text, _note(entry, notes, row, column)
        )
        for row, *texts in entry["rows"]
        for column, text in zip(columns, texts, strict=True)
    ]
    return PaperTable(
        number=number,
        title=entry["title"],
        corner=entry["corner"],
        columns=columns,
        rows=tuple(row for row, *_ in entry["rows"]),
        numbers=tuple(numbers),
    )


def _notes(entry: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the notes by (row,) or (row, column)."""
    return {
        (place,) if isinstance(place, str) else tuple(place): note
        for note, places in entry.get("notes", {}).items()
        for place in places
    }


def _note(
    entry: Mapping[str, Any],
    notes: Mapping[tuple[str, ...], str],
    row: str,
    column: str,
) -> str:
    parts = (notes.get((row,), entry.get("note", "")), notes.get((row, column), ""))
    return "; ".join(part for part in parts if part)


def _value(text: str) -> float:
    """Return a printed number; ``{10, 50, 100}`` is none."""
    if text.startswith("{"):
        return float("nan")
    if text.endswith("K"):
        return round(1000 * float(text.removesuffix("K")), 3)
    return float(text)


@dataclass(frozen=True)
class Panel:
    """One classifier of a figure."""

    title: str
    recipe: str
    alpha: float | None = None
    """LADE's α if it is not the recipe's."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, and what it is drawn from."""

    number: int
    title: str
    name: str
    """Key of :data:`tailshift.report.plots.FIGURES`."""
    panels: tuple[Panel, ...]


def _compared(pattern: str) -> tuple[Panel, ...]:
    """Return the methods of the reliability diagrams, with their recipes."""
    methods = {
        "Causal Norm": "causal_norm",
        "Balanced Softmax": "balanced_softmax",
        "Softmax": "softmax",
        "LADE": "lade",
    }
    return tuple(Panel(t, pattern.format(name)) for t, name in methods.items())


_LADE = "cifar100_lt_ir100_lade"
PAPER_FIGURES = {
    f"figure{figure.number}": figure
    for figure in (
        PaperFigure(
            2,
            "Average probability of each class on the balanced test set, CIFAR-100-LT",
            "average_probability",
            (Panel("Softmax", "cifar100_lt_ir100_softmax"), Panel("LADE", _LADE)),
        ),
        PaperFigure(
            3,
            "Logits of each class as α grows, CIFAR-100-LT, imbalance ratio 100",
            "class_logits",
            (
                Panel("LADE (α = 0)", "cifar100_lt_ir100_balanced_softmax"),
                Panel("LADE (α = 0.01)", _LADE, 0.01),
                Panel("LADE (α = 0.1)", _LADE),
                Panel("LADE (α = 1)", _LADE, 1.0),
            ),
        ),
        PaperFigure(
            4,
            "Reliability diagrams, ImageNet-LT",
            "reliability",
            _compared("imagenet_lt_{}_180ep"),
        ),
        PaperFigure(
            6,
            "Reliability diagrams, CIFAR-100-LT, imbalance ratio 50",
            "reliability",
            _compared("cifar100_lt_ir50_{}"),
        ),
    )
}
"""The figures that can be reproduced. Figure 3's values of α are ours around the
recipe's 0.1: the paper's text does not name those it shows."""


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

ABLATIONS = {"LADE": "lade", "λ = 0": "lade_lambda0", "α = 0": "balanced_softmax"}
"""The columns of Table 8. Without LADER, LADE's loss is that of Balanced Softmax; the
paper prints the same number for both on every data set."""
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
