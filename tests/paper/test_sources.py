"""Each cell of the reproduced tables knows the recipe behind it."""

import pytest

from tailshift.paper.numbers import (
    PRINTED_METHODS,
    Source,
    asked_numbers,
    paper_table,
    source_of,
)
from tailshift.recipes import recipe_names

RECIPES = set(recipe_names())


@pytest.mark.parametrize(
    ("number", "row", "column", "source"),
    [
        (2, "Softmax", "100", Source("cifar100_lt_ir100_softmax", False)),
        (2, "PC Softmax", "100", Source("cifar100_lt_ir100_softmax", True)),
        (2, "LADE", "50", Source("cifar100_lt_ir50_lade", True)),
        (2, "LDAM", "100", Source("cifar100_lt_ir100_ldam_drw", False)),
        (2, "MiSLAS", "50", Source("cifar100_lt_ir50_mislas", False)),
        (2, "Focal Loss", "10", Source("cifar100_lt_ir10_focal", False)),
        (
            3,
            "Balanced Softmax",
            "Few",
            Source("places_lt_balanced_softmax", False, "few"),
        ),
        (4, "LADE, 90 epochs", "Many", Source("imagenet_lt_lade_90ep", True, "many")),
        (
            4,
            "PC Softmax, 180 epochs",
            "All",
            Source("imagenet_lt_softmax_180ep", True, "accuracy"),
        ),
        (5, "LDAM", "All", Source("inaturalist2018_ldam", False)),
        (5, "Decouple-τ-norm", "All", Source("inaturalist2018_tau_norm", False)),
        (
            6,
            "PC Causal Norm",
            "backward:50",
            Source("imagenet_lt_causal_norm_180ep", True, target="backward:50"),
        ),
        (
            9,
            "Balanced Softmax",
            "uniform",
            Source("cifar100_lt_ir50_balanced_softmax", False),
        ),
        (
            10,
            "PC Softmax",
            "Classwise ECE",
            Source("cifar100_lt_ir50_softmax", True, "classwise_ece"),
        ),
        (11, "LADE", "NLL", Source("imagenet_lt_lade_180ep", True, "nll")),
        (8, "Places-LT", "λ = 0", Source("places_lt_lade_lambda0", True)),
        (8, "ImageNet-LT", "α = 0", Source("imagenet_lt_balanced_softmax_180ep", True)),
        (8, "CIFAR-100-LT (IB 10)", "LADE", Source("cifar100_lt_ir10_lade", True)),
    ],
)
def test_source_of__is_recipe_and_inference(
    number: int, row: str, column: str, source: Source
) -> None:
    assert source_of(paper_table(number).at(row, column)) == source


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 8, 9, 10, 11])
def test_source_of__recipes_of_our_methods_exist(number: int) -> None:
    ours = ("Softmax", "PC Softmax", "Balanced Softmax", "PC Balanced Softmax", "LADE")
    for cell in paper_table(number).numbers:
        source = source_of(cell)
        if number == 8 or cell.row.partition(", ")[0] in ours:
            assert source.recipe in RECIPES


def test_methods__are_those_of_the_tables() -> None:
    rows = {
        row for number in (2, 3, 4, 5, 6, 9, 10, 11) for row in paper_table(number).rows
    }
    titles = {row.partition(", ")[0].removeprefix("PC ") for row in rows}
    assert titles == PRINTED_METHODS.keys()


@pytest.mark.parametrize("number", [10, 11])
def test_asked_numbers__every_pc_variant(number: int) -> None:
    numbers = asked_numbers(paper_table(number))
    rows = list(dict.fromkeys(cell.row for cell in numbers))
    assert rows[-2:] == ["PC Causal Norm", "PC Balanced Softmax"]
    assert all(source_of(cell).is_compensated for cell in numbers[-10:])


@pytest.mark.parametrize("number", [2, 6, 9])
def test_asked_numbers__are_the_printed_ones(number: int) -> None:
    assert asked_numbers(paper_table(number)) == paper_table(number).numbers
