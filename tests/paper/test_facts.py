"""Tables 1 and 7 need no run: the data's counts and the recipes' settings."""

import math

import pytest

from tailshift.config import RunConfig
from tailshift.paper.comparison import Comparison, compare_data_sets, compare_settings
from tailshift.paper.numbers import BENCHMARKS
from tailshift.recipes import load_recipe


@pytest.fixture(scope="module")
def configs() -> dict[str, RunConfig]:
    names = [benchmark.format("lade") for benchmark in BENCHMARKS.values()]
    return {name: load_recipe(name) for name in names}


def _by_place(cells: list[Comparison]) -> dict[tuple[str, str], Comparison]:
    return {(cell.row, cell.column): cell for cell in cells}


@pytest.mark.paper
def test_compare_data_sets__counts_the_training_images(
    configs: dict[str, RunConfig],
) -> None:
    cells = _by_place(compare_data_sets(configs))
    found = {
        row: tuple(
            cells[row, column].ours_mean
            for column in ("Classes", "Samples", "Imbalance ratio")
        )
        for row, _ in cells
    }
    assert found == {
        "CIFAR-100-LT, ratio 10": (100, 19_573, 10),
        "CIFAR-100-LT, ratio 50": (100, 12_608, 50),
        "CIFAR-100-LT, ratio 100": (100, 10_847, 100),
        "Places-LT": (365, 62_500, 996),
        "ImageNet-LT": (1000, 115_846, 256),
        "iNaturalist 2018": (8142, 437_513, 500),
    }


def test_compare_data_sets__takes_the_printed_set_apart(
    configs: dict[str, RunConfig],
) -> None:
    cells = _by_place(compare_data_sets(configs))
    for ratio in (10, 50, 100):
        row = f"CIFAR-100-LT, ratio {ratio}"
        assert cells[row, "Imbalance ratio"].paper == ratio
        assert cells[row, "Samples"].paper == 50_000
        assert cells[row, "Samples"].note == "50K is CIFAR-100 before thinning"
        assert cells[row, "Samples"].quantity == "count"


@pytest.mark.paper
def test_compare_settings__recipes_are_those_of_table_7(
    configs: dict[str, RunConfig],
) -> None:
    cells = compare_settings(configs)
    assert len(cells) == 18
    assert all(cell.difference == 0 for cell in cells)


def test_compare__shows_the_paper_where_a_recipe_is_missing() -> None:
    cells = compare_data_sets({}) + compare_settings({})
    assert all(math.isnan(cell.ours_mean) for cell in cells)
    assert not any(math.isnan(cell.paper) for cell in cells)
