"""Ours beside the paper's, as it is printed and written."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tailshift.paper.comparison import Comparison, compare
from tailshift.paper.numbers import paper_table
from tailshift.paper.tables import (
    comparison_latex,
    comparison_markdown,
    comparison_table,
    write_comparison_csv,
)

NAN = float("nan")


def _printed(cells: list[Comparison], **settings: str) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(comparison_table(cells, **settings))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


@pytest.fixture
def cells() -> list[Comparison]:
    table = paper_table(2)
    return [
        compare(table.at("BBN", "100"), []),
        compare(table.at("BBN", "50"), []),
        compare(table.at("PC Softmax", "100"), [44.0, 45.0]),
        compare(table.at("PC Softmax", "50"), [49.48]),
    ]


def test_comparison_table__has_two_lines_a_row(cells: list[Comparison]) -> None:
    assert (
        _printed(cells, title="Table 2")
        == """\
                                  Table 2
Method                                                 100                50
────────────────────────────────────────────────────────────────────────────
BBN¹                ours                                 –                 –
                    paper                             42.6              47.0
PC Softmax²         ours (1–2)                  44.5 ± 0.7              49.5
                    paper                     45.3 (−0.8)³       49.5 (0.0)⁴
ours (n): mean ± sd of n seeds, last epoch, uniform test set
¹ borrowed from Tang et al. (2020)
² authors' own run
³ users of the authors' code report 42.3 with the settings that came with it
⁴ the authors' model measured 49.44"""
    )


def test_comparison_table__fits_a_terminal() -> None:
    table = paper_table(4)
    cells = [compare(cell, [cell.value - 1, cell.value]) for cell in table.numbers]
    printed = _printed(cells, title=table.title)
    assert "…" not in printed
    assert "\nBalanced Softmax  ours (2)" in printed
    assert "\n180 epochs²       paper" in printed


def test_comparison_table__numbers_keep_their_kind() -> None:
    cells = [
        Comparison(1, "Places-LT", "Samples", 62_500, NAN, 0, 62_500, "count"),
        Comparison(1, "Places-LT", "α", 0.005, NAN, 0, 0.01, "setting"),
    ]
    assert comparison_markdown(cells, corner="Data set") == (
        "| Data set |  | Samples | α |\n"
        "| --- | --- | ---: | ---: |\n"
        "| Places-LT | ours | 62,500 | 0.005 |\n"
        "|  | paper | 62,500 (0) | 0.01 (−0.005) |\n"
    )


def test_comparison_markdown__is_the_same_table(cells: list[Comparison]) -> None:
    assert comparison_markdown(cells[2:]) == (
        "| Method |  | 100 | 50 |\n"
        "| --- | --- | ---: | ---: |\n"
        "| PC Softmax¹ | ours (1–2) | 44.5 ± 0.7 | 49.5 |\n"
        "|  | paper | 45.3 (−0.8)² | 49.5 (0.0)³ |\n"
        "\n"
        "- ours (n): mean ± sd of n seeds, last epoch, uniform test set\n"
        "- ¹ authors' own run\n"
        "- ² users of the authors' code report 42.3 with the settings that came "
        "with it\n"
        "- ³ the authors' model measured 49.44\n"
    )


def test_write_comparison_csv__has_a_line_a_cell(
    tmp_path: Path, cells: list[Comparison]
) -> None:
    counted = Comparison(1, "Places-LT", "Samples", 62_500, NAN, 0, 60_000, "count")
    write_comparison_csv(tmp_path / "table.csv", [cells[0], cells[2], counted])
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == (
        "table,row,column,ours_mean,ours_sd,num_seeds,paper,difference,"
        "subset_sd,standard_error,note\n"
        "2,BBN,100,,,0,42.6,,,,borrowed from Tang et al. (2020)\n"
        "2,PC Softmax,100,44.50,0.71,2,45.3,-0.80,,,authors' own run; users of the "
        "authors' code report 42.3 with the settings that came with it\n"
        "1,Places-LT,Samples,62500,,0,60000,2500,,,\n"
    )


def test_comparison_markdown__best_of_ours_and_of_the_papers_is_bold() -> None:
    """Of accuracy the highest, of errors the lowest, ties as printed."""
    table = paper_table(10)
    cells = [
        compare(table.at(row, column), values, metric)
        for row, ours in (("Softmax", 0.11), ("PC Softmax", 0.1099), ("LADE", 0.2))
        for column, metric, values in (
            ("Accuracy", "accuracy", [100 * ours]),
            ("ECE", "ece", [ours]),
        )
    ]
    lines = comparison_markdown(cells).splitlines()
    assert lines[2:8] == [
        "| Softmax¹ | ours (1) | 11.0 | **0.110** |",
        "|  | paper | 45.5 (−34.5) | 0.249 (−0.139) |",
        "| PC Softmax¹ | ours (1) | 11.0 | **0.110** |",
        "|  | paper | 49.5 (−38.5) | 0.174 (−0.064) |",
        "| LADE¹ | ours (1) | **20.0** | 0.200 |",
        "|  | paper | **50.5 (−30.5)** | **0.148 (+0.052)** |",
    ]


def test_comparison_table__eleven_targets_fit_a_terminal() -> None:
    table = paper_table(9)
    cells = [compare(cell, [cell.value - 1, cell.value]) for cell in table.numbers]
    printed = _printed(cells, title="Table 9")
    assert "…" not in printed
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index(next(line for line in lines if line.startswith("PC Balanced")))
    assert [" ".join(line.split()) for line in lines[at : at + 3]] == [
        "PC Balanced ours (2) 65.4 62.6 59.0 55.8 51.7 49.4 47.4 46.4 45.9 46.8 47.9",
        "Softmax¹ " + " ".join(["±0.7"] * 11),
        "paper 65.9 63.1 59.5 56.3 52.2 49.9 47.9 46.9 46.4 47.3 48.4",
    ]
    assert " ".join(lines[2].split()) == "Method 50 25 10 5 2 unif 2 5 10 25 50"
    assert (
        "ours (n): mean ± sd of n seeds, last epoch, expected over all test sets"
    ) in lines


def test_comparison_table__calibration_fits_a_terminal() -> None:
    table = paper_table(11)
    metrics = ("accuracy", "ece", "classwise_ece", "brier", "nll")
    names = dict(zip(table.columns, metrics, strict=True))
    cells = [
        compare(cell, [cell.value, 1.1 * cell.value], names[cell.column])
        for cell in table.numbers
    ]
    printed = _printed(cells, title=table.title)
    assert "…" not in printed
    assert "Classwise ECE" in printed
    assert "0.000484" in printed  # as many digits as the paper


def test_comparison_latex__is_the_same_table(cells: list[Comparison]) -> None:
    table = comparison_latex(cells, title="Table 2")
    assert table.count("\\\\\n") == 1 + 4  # the head, and two lines a row
    assert (
        "    PC Softmax\\textsuperscript{2} & ours (1--2) & 44.5 $\\pm$ 0.7 & "
        "49.5 \\\\\n"
        "     & paper & \\textbf{45.3 ($-$0.8)\\textsuperscript{3}} & "
        "\\textbf{49.5 (0.0)\\textsuperscript{4}} \\\\\n"
    ) in table
    assert "\\caption{Table 2. ours (n): mean $\\pm$ sd of n seeds" in table


def test_comparison_markdown__data_sets_are_no_contest() -> None:
    table = paper_table(8)
    cells = [compare(cell, [cell.value]) for cell in table.numbers]
    assert "**" not in comparison_markdown(cells, corner=table.corner)


def test_write_comparison_csv__errors_have_a_digit_more_than_printed(
    tmp_path: Path,
) -> None:
    cell = compare(paper_table(10).at("LADE", "Classwise ECE"), [0.00412345], "ece")
    write_comparison_csv(tmp_path / "table.csv", [cell])
    assert (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()[1] == (
        "10,LADE,Classwise ECE,0.004123,0.000000,1,0.00434,-0.000217,,,authors' own run"
    )
