"""A method's results become one row, or two: raw, and compensated as "PC"."""

import math
from dataclasses import replace

import pytest

from tailshift.evaluation.records import Record
from tailshift.evaluation.summary import Summary, summarise
from tailshift.metrics import METRICS
from tailshift.report.rows import (
    Cell,
    best_in,
    columns_of,
    rows_by_method,
    rows_by_metric,
)

NAN = math.nan


def _summary(method: str, target: str, raw: float, compensated: float) -> Summary:
    summary = Summary(method, target, raw, 0.01, compensated, 0.02, 3)
    return replace(summary, compensates=method == "LADE")


def test_rows_by_method__names_and_order_of_the_demo() -> None:
    summaries = [
        _summary(method, target, 0.5, 0.6)
        for method in ("Softmax", "Balanced Softmax", "LADE")
        for target in ("forward:50", "uniform")
    ]
    rows = rows_by_method(summaries)
    assert [(row.name, row.method, row.is_compensated) for row in rows] == [
        ("Softmax", "Softmax", False),
        ("PC Softmax", "Softmax", True),
        ("Balanced Softmax", "Balanced Softmax", False),
        ("PC Balanced Softmax", "Balanced Softmax", True),
        ("LADE", "LADE", True),
    ]
    assert columns_of(rows) == ["forward:50", "uniform"]


def test_rows_by_method__cells_hold_the_right_numbers() -> None:
    raw, compensated = rows_by_method([_summary("Softmax", "uniform", 0.7, 0.8)])
    assert raw.cells == {"uniform": Cell(0.7, 0.01, 3)}
    assert compensated.cells == {"uniform": Cell(0.8, 0.02, 3)}


def test_rows_by_method__lade_is_its_compensated_result() -> None:
    [row] = rows_by_method([_summary("LADE", "uniform", 0.7, 0.8)])
    assert row.cells == {"uniform": Cell(0.8, 0.02, 3)}


@pytest.mark.parametrize("method", ["Softmax", "LADE"])
def test_rows_by_method__unknown_prior_leaves_the_raw_row(method: str) -> None:
    [row] = rows_by_method([_summary(method, "uniform", 0.7, NAN)])
    assert (row.name, row.is_compensated) == (method, False)
    assert row.cells == {"uniform": Cell(0.7, 0.01, 3)}


def test_rows_by_metric__mean_and_deviation_over_runs() -> None:
    """The deviation of 0.5 and 0.7 is √(2 · 0.1² / 1) = 0.1414."""
    runs = [
        [
            Record("uniform", False, 9, accuracy, NAN, 0.4, 0.3, 1.0, accuracy - 0.1),
            Record("uniform", True, 9, accuracy + 0.1, NAN, 0.4, 0.3, 1.0, 0.5),
            Record("forward:2", False, 9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        ]
        for accuracy in (0.5, 0.7)
    ]
    summaries = [
        summary
        for name, metric in METRICS.items()
        if metric.is_percent
        for summary in summarise({"Softmax": runs}, name)
    ]
    raw, compensated = rows_by_metric(summaries, "uniform")
    assert [raw.name, compensated.name] == ["Softmax", "PC Softmax"]
    assert {column: str(cell) for column, cell in raw.cells.items()} == {
        "All": "60.0 ± 14.1",
        "Many": "–",
        "Medium": "40.0 ± 0.0",
        "Few": "30.0 ± 0.0",
        "Top-5": "100.0 ± 0.0",
        "Macro-F1": "50.0 ± 14.1",
    }
    assert str(compensated.cells["All"]) == "70.0 ± 14.1"


def test_cell__single_run_has_no_deviation() -> None:
    assert str(Cell(0.7123, 0.0, 1)) == "71.2"


def test_best_in__ties_are_those_of_the_printed_numbers() -> None:
    rows = rows_by_method(
        [
            _summary("A", "uniform", 0.70041, NAN),
            _summary("B", "uniform", 0.70039, NAN),
            _summary("C", "uniform", 0.69, NAN),
        ]
    )
    assert best_in(rows, "uniform") == {"A", "B"}


def test_best_in__one_row_is_not_best_and_nan_never_is() -> None:
    rows = rows_by_method([_summary("A", "uniform", 0.7, NAN)])
    assert best_in(rows, "uniform") == set()
    rows += rows_by_method([_summary("B", "uniform", NAN, NAN)])
    assert best_in(rows, "uniform") == {"A"}


def test_rows_by_method__the_test_set_as_it_is_has_raw_numbers_alone() -> None:
    """LADE has one row, the compensated one, and no prior to compensate to there."""
    known, as_is = (
        _summary("LADE", "uniform", 0.7, 0.8),
        _summary("LADE", "as_is", 0.5, NAN),
    )
    [row] = rows_by_method([known, as_is])
    assert (row.cells["uniform"].mean, row.cells["as_is"].mean) == (0.8, 0.5)
    _, pc = rows_by_method([replace(s, compensates=False) for s in (known, as_is)])
    assert math.isnan(pc.cells["as_is"].mean)
