"""Ours beside the paper's: mean, deviation and difference."""

import math

import pytest

from tailshift.paper.comparison import compare
from tailshift.paper.numbers import paper_table

LADE = paper_table(2).at("LADE", "100")


def test_compare__by_hand() -> None:
    """Mean of 44, 45, 46 is 45, its deviation √((1 + 0 + 1) / 2) = 1; 45 − 45.4."""
    comparison = compare(LADE, [44.0, 45.0, 46.0])
    assert (comparison.ours_mean, comparison.ours_sd) == (45.0, 1.0)
    assert comparison.num_seeds == 3
    assert comparison.difference == pytest.approx(-0.4)
    assert (comparison.table, comparison.row, comparison.column) == (2, "LADE", "100")
    assert (comparison.paper, comparison.note) == (45.4, "authors' own run")


def test_compare__one_seed_has_no_deviation() -> None:
    assert compare(LADE, [44.0]).ours_sd == 0.0


def test_compare__nothing_is_nan() -> None:
    comparison = compare(LADE, [])
    numbers = (comparison.ours_mean, comparison.ours_sd, comparison.difference)
    assert all(math.isnan(number) for number in numbers)
    assert comparison.num_seeds == 0
