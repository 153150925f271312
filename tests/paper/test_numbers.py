"""The printed numbers, compared with values read off the paper by hand."""

import math

import pytest

from tailshift.paper.numbers import PaperNumber, paper_table
from tailshift.targets import PAPER_TARGETS

OWN = "authors' own run"


@pytest.mark.parametrize(
    ("number", "num_rows", "num_columns"),
    [
        (1, 4, 3),
        (2, 10, 3),
        (3, 9, 4),
        (4, 15, 4),
        (5, 11, 1),
        (6, 7, 11),
        (7, 6, 3),
        (8, 6, 3),
        (9, 7, 11),
        (10, 5, 5),
        (11, 5, 5),
    ],
)
def test_paper_table__has_every_cell(
    number: int, num_rows: int, num_columns: int
) -> None:
    table = paper_table(number)
    assert (table.number, len(table.rows), len(table.columns)) == (
        number,
        num_rows,
        num_columns,
    )
    assert [(cell.row, cell.column) for cell in table.numbers] == [
        (row, column) for row in table.rows for column in table.columns
    ]


@pytest.mark.paper
@pytest.mark.parametrize(
    ("number", "row", "column", "text"),
    [
        (1, "CIFAR-100-LT", "Samples", "50K"),
        (1, "CIFAR-100-LT", "Imbalance ratio", "{10, 50, 100}"),
        (1, "Places-LT", "Imbalance ratio", "996"),
        (1, "ImageNet-LT", "Samples", "186K"),
        (1, "iNaturalist 2018", "Classes", "8K"),
        (2, "Focal Loss", "100", "38.4"),
        (2, "LDAM", "50", "46.6"),
        (2, "BBN", "10", "59.1"),
        (2, "Causal Norm", "50", "50.3"),
        (2, "Balanced Softmax", "100", "45.1"),
        (2, "Softmax", "100", "41.0"),
        (2, "PC Softmax", "100", "45.3"),
        (2, "PC Softmax", "10", "61.2"),
        (2, "LADE", "100", "45.4"),
        (2, "LADE", "50", "50.5"),
        (2, "LADE", "10", "61.7"),
        (3, "Focal Loss", "Many", "41.1"),
        (3, "OLTR", "Few", "25.3"),
        (3, "Decouple-τ-norm", "Medium", "40.7"),
        (3, "Causal Norm", "All", "32.4"),
        (3, "Softmax", "Many", "46.4"),
        (3, "PC Softmax", "All", "38.7"),
        (3, "LADE", "All", "38.8"),
        (4, "Focal Loss, 90 epochs", "Few", "8.2"),
        (4, "Decouple-cRT, 90 epochs", "All", "49.6"),
        (4, "Softmax, 90 epochs", "Few", "6.6"),
        (4, "PC Softmax, 90 epochs", "All", "48.9"),
        (4, "LADE, 90 epochs", "All", "51.9"),
        (4, "Causal Norm, 180 epochs", "Many", "65.2"),
        (4, "PC Softmax, 180 epochs", "Few", "34.3"),
        (4, "LADE, 180 epochs", "All", "53.0"),
        (5, "CB-Focal", "All", "61.1"),
        (5, "LDAM+DRW", "All", "68.0"),
        (5, "BBN", "All", "69.6"),
        (5, "LADE", "All", "70.0"),
        (6, "Causal Norm", "forward:50", "64.1"),
        (6, "PC Balanced Softmax", "backward:50", "49.0"),
        (6, "LADE", "uniform", "53.0"),
        (7, "CIFAR-100-LT (IB 100)", "α", "0.1"),
        (7, "Places-LT", "λ", "0.1"),
        (7, "Places-LT", "α", "0.005"),
        (7, "iNaturalist 2018", "Batch size", "256"),
        (8, "CIFAR-100-LT (IB 50)", "λ = 0", "49.5"),
        (8, "ImageNet-LT", "λ = 0", "47.0"),
        (8, "iNaturalist 2018", "α = 0", "69.8"),
        (9, "Causal Norm", "uniform", "48.1"),
        (9, "Softmax", "backward:50", "23.9"),
        (9, "LADE", "forward:50", "67.4"),
        (9, "LADE", "backward:50", "49.4"),
        (10, "Softmax", "Classwise ECE", "0.00680"),
        (10, "LADE", "ECE", "0.148"),
        (11, "PC Softmax", "NLL", "2.17"),
        (11, "Balanced Softmax", "Classwise ECE", "0.000406"),
        (11, "LADE", "Brier", "0.611"),
    ],
)
def test_paper_table__is_what_the_paper_prints(
    number: int, row: str, column: str, text: str
) -> None:
    assert paper_table(number).at(row, column).text == text


@pytest.mark.paper
def test_paper_table__agrees_with_itself() -> None:
    """α = 0 is Balanced Softmax, and the uniform columns are in Tables 2 and 4."""
    two, four, eight = paper_table(2), paper_table(4), paper_table(8)
    for ratio in ("100", "50", "10"):
        ablated = eight.at(f"CIFAR-100-LT (IB {ratio})", "α = 0")
        assert ablated.value == two.at("Balanced Softmax", ratio).value
    for method in ("Balanced Softmax", "Softmax", "PC Softmax", "LADE"):
        shifted = paper_table(6).at(method, "uniform").value
        assert shifted == four.at(f"{method}, 180 epochs", "All").value
        assert shifted == paper_table(11).at(method, "Accuracy").value
        shifted = paper_table(9).at(method, "uniform").value
        assert shifted == two.at(method, "50").value
        assert shifted == paper_table(10).at(method, "Accuracy").value


@pytest.mark.parametrize("number", [6, 9])
def test_paper_table__shifted_columns_are_targets(number: int) -> None:
    assert paper_table(number).columns == PAPER_TARGETS


def test_paper_table__reads_thousands_and_sets() -> None:
    table = paper_table(1)
    assert table.at("Places-LT", "Samples").value == 62_500
    assert table.at("ImageNet-LT", "Classes").value == 1000
    assert math.isnan(table.at("CIFAR-100-LT", "Imbalance ratio").value)


@pytest.mark.parametrize(
    ("number", "row", "column", "note"),
    [
        (1, "Places-LT", "Samples", ""),
        (1, "CIFAR-100-LT", "Samples", "50K is CIFAR-100 before thinning"),
        (
            1,
            "ImageNet-LT",
            "Samples",
            "186K is training, validation and test images together",
        ),
        (2, "Causal Norm", "50", "borrowed from Tang et al. (2020)"),
        (2, "LADE", "50", OWN),
        (2, "PC Softmax", "50", f"{OWN}; the authors' model measured 49.44"),
        (3, "Causal Norm", "All", OWN),
        (3, "OLTR", "All", "borrowed from Kang et al. (2019)"),
        (4, "Causal Norm, 90 epochs", "All", "borrowed from Tang et al. (2020)"),
        (4, "Causal Norm, 180 epochs", "All", OWN),
        (5, "BBN", "All", "borrowed from Zhou et al. (2020)"),
        (5, "Causal Norm", "All", OWN),
        (9, "Causal Norm", "uniform", f"{OWN}; Table 2's 50.3 is borrowed"),
        (10, "Causal Norm", "Accuracy", f"{OWN}; Table 2's 50.3 is borrowed"),
    ],
)
def test_paper_table__says_whose_numbers_these_are(
    number: int, row: str, column: str, note: str
) -> None:
    assert paper_table(number).at(row, column).note == note


def test_paper_number__is_one_record() -> None:
    assert paper_table(2).at("LADE", "10") == PaperNumber(
        table=2, row="LADE", column="10", value=61.7, text="61.7", note=OWN
    )


def test_paper_table__says_what_is_not_the_papers() -> None:
    notes = {cell.row: cell.note for cell in paper_table(2).numbers}
    borrowed = "borrowed from Tang et al. (2020)"
    assert notes["LDAM"] == (
        f"{borrowed}; the numbers are those of LDAM+DRW, and so is ours"
    )
    assert notes["MiSLAS"] == "not in the paper: printed by Zhong et al. (2021)"
    assert notes["SADE"] == "not in the paper: printed by Zhang et al. (2022)"


def test_paper_table__refuses_another_number() -> None:
    with pytest.raises(ValueError, match="number") as error:
        paper_table(12)
    assert str(error.value) == (
        "`number` must be that of a table of the paper, 1 to 11, but is 12."
    )


def test_at__names_what_there_is() -> None:
    with pytest.raises(ValueError, match="row") as error:
        paper_table(8).at("Place-LT", "LADE")
    assert str(error.value) == (
        "`row` 'Place-LT' is not in Table 8; did you mean 'Places-LT'? Known: "
        "CIFAR-100-LT (IB 10), CIFAR-100-LT (IB 50), CIFAR-100-LT (IB 100), "
        "Places-LT, ImageNet-LT, iNaturalist 2018"
    )
    with pytest.raises(ValueError, match="column") as error:
        paper_table(2).at("LADE", "20")
    assert str(error.value) == "`column` '20' is not in Table 2; Known: 100, 50, 10"
