"""Tables for the terminal, Markdown and CSV."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tailshift.evaluation.summary import Summary
from tailshift.report.rows import target_label
from tailshift.report.tables import summary_table, to_latex, to_markdown, write_csv
from tailshift.targets import PAPER_TARGETS

NAN = math.nan
DRAWN = {"num_samples": 500, "num_effective": 500.0, "sampling": "first"}
WEIGHTED = {"num_samples": 90, "num_effective": 41.56, "sampling": "reweighted"}


def _demo(methods: tuple[str, ...] = ("Softmax", "Balanced Softmax", "LADE")):
    return [
        replace(
            Summary(method, target, 0.5 + i / 100, 0.0123, 0.8 + i / 100, 0.1, 3),
            compensates=method == "LADE",
            **DRAWN,
        )
        for i, method in enumerate(methods)
        for target in PAPER_TARGETS
    ]


def _printed(summaries: list[Summary], width: int, **options: bool) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **options).print(summary_table(summaries))
    return file.getvalue()


def test_summary_table__demo_fits_into_80_columns_uncut() -> None:
    text = _printed(_demo(), width=80)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "\nforward 50   50.0 ± 1.2  80.0 ± 10.0" in text
    assert text.count("82.0 ± 10.0") == 11
    assert [line.split()[:2] for line in lines[4:15]] == [
        (target.replace(":", " ") + " 50.0").split()[:2] for target in PAPER_TARGETS
    ]
    assert [line.split()[-1] for line in lines[2:15:12]] == ["n", "500"]
    assert lines[-1].strip() == "n: test samples"
    assert "…" not in text


def test_summary_table__many_methods_stand_below_each_other() -> None:
    text = _printed(_demo(("Softmax", "Focal", "LDAM", "LADE")), width=100)
    lines = text.splitlines()
    names = ["Softmax", "PC Softmax", "Focal", "PC Focal", "LDAM", "PC LDAM", "LADE"]
    assert [line[:11].strip() for line in lines[4:18:2]] == names
    assert lines[4].split()[1:] == ["50.0"] * 11
    assert lines[5].split() == ["±1.2"] * 11
    assert lines[18].split() == ["n", *["500"] * 11]
    assert "…" not in text


def test_summary_table__best_is_bold_and_markup_is_text() -> None:
    summaries = [
        Summary("[red]A[/red]", "uniform", 0.5, 0.01, NAN, NAN, 3),
        Summary("B", "uniform", 0.6, 0.01, NAN, NAN, 3),
    ]
    text = _printed(summaries, width=80, force_terminal=True, color_system=None)
    assert "[red]A[/red]" in text
    text = _printed(summaries, width=80, force_terminal=True)
    assert "\x1b[1m60.0 ± 1.0\x1b[0m" in text
    assert "\x1b[1m50.0" not in text


@pytest.mark.parametrize("num_methods", [1, 6])
def test_summary_table__control_characters_are_spelt_out(num_methods: int) -> None:
    summaries = [
        Summary(f"A\x1b[31m{i}", "mix\x1b[5m.txt", 0.5, 0.01, NAN, NAN, 3)
        for i in range(num_methods)
    ]
    text = _printed(summaries, width=80)
    assert "\x1b" not in text
    assert "A\\x1b[31m0" in text


def test_to_markdown__methods_down_targets_across() -> None:
    summaries = [
        Summary("Softmax", "uniform", 0.5, 0.01, 0.6, 0.02, 3),
        Summary("Softmax", "backward:50", 0.4, 0.01, 0.8, 0.02, 3),
        Summary("LADE", "uniform", 0.6, 0.01, 0.7, 0.02, 3, compensates=True),
        Summary("LADE", "backward:50", 0.6, 0.01, 0.75, 0.02, 3, compensates=True),
    ]
    assert to_markdown(summaries) == (
        "| Accuracy in % | uniform | backward 50 |\n"
        "| --- | ---: | ---: |\n"
        "| Softmax | 50.0 ± 1.0 | 40.0 ± 1.0 |\n"
        "| PC Softmax | 60.0 ± 2.0 | **80.0 ± 2.0** |\n"
        "| LADE | **70.0 ± 2.0** | 75.0 ± 2.0 |\n"
    )


def test_tables__re_weighted_scores_show_the_effective_number() -> None:
    """The fewest, if rows differ; a table of unknown sizes has no n."""
    few = Summary("A", "uniform", 0.5, 0.0, NAN, NAN, 1, **WEIGHTED)
    summaries = [few, Summary("B", "uniform", 0.5, 0.0, NAN, NAN, 1, **DRAWN)]
    assert to_markdown(summaries).splitlines()[-1] == "| n | 42 |"
    assert to_latex(summaries).splitlines()[-4] == r"    n & 42 \\"
    words = " ".join(_printed([few], width=80).split())
    assert "uniform 50.0 42 n: effective test samples, of 90 weighted" in words
    unknown = Summary("A", "uniform", 0.5, 0.0, NAN, NAN, 1)
    assert to_markdown([unknown]).splitlines()[-1] == "| A | 50.0 |"


def test_to_markdown__names_cannot_break_the_table() -> None:
    summaries = [Summary("a|b\n<b>*c*", "uniform", 0.5, 0.0, NAN, NAN, 1)]
    assert to_markdown(summaries).splitlines()[2] == (r"| a\|b &lt;b&gt;\*c\* | 50.0 |")


def test_write_csv__percent_with_two_decimals(tmp_path: Path) -> None:
    summaries = [
        Summary(
            *("Softmax", "forward:50", 0.71234, 0.00456, 0.8, 0.0, 3),
            **WEIGHTED,
            raw_error=0.0091,
            compensated_error=0.008,
        ),
        Summary('a,"b"', "uniform", 0.5, 0.0, NAN, NAN, 1),
    ]
    path = tmp_path / "table.csv"
    write_csv(path, summaries)
    assert path.read_text(encoding="utf-8") == (
        "method,target,raw_mean,raw_sd,compensated_mean,compensated_sd,"
        "raw_error,compensated_error,raw_subset_sd,compensated_subset_sd,"
        "num_samples,num_effective,sampling\n"
        "Softmax,forward:50,71.23,0.46,80.00,0.00,0.91,0.80,,,90,41.6,reweighted\n"
        '"a,""b""",uniform,50.00,0.00,,,,,,,,,\n'
    )
    with path.open(encoding="utf-8", newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["Softmax", 'a,"b"']


def test_write_csv__no_formula_reaches_a_spreadsheet(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [Summary("=1+1", "@mix.txt", 0.5, 0, NAN, NAN, 1)])
    _, row = (tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()
    assert row == "'=1+1,'@mix.txt,50.00,0.00,,,,,,,,,"


def test_write_csv__other_scores_have_columns_of_their_own(tmp_path: Path) -> None:
    summaries = [
        Summary("Softmax", "uniform", 0.5, 0.01, 0.6, 0.02, 3),
        Summary("Softmax", "uniform", 0.25, 0.03, NAN, NAN, 3, metric="ece"),
    ]
    write_csv(tmp_path / "table.csv", summaries)
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == (
        "method,target,raw_mean,raw_sd,compensated_mean,compensated_sd,"
        "raw_ece_mean,raw_ece_sd,compensated_ece_mean,compensated_ece_sd,"
        "raw_error,compensated_error,raw_subset_sd,compensated_subset_sd,"
        "num_samples,num_effective,sampling\n"
        "Softmax,uniform,50.00,1.00,60.00,2.00,0.250000,0.030000,,,,,,,,,\n"
    )


def test_summary_table__the_lowest_error_is_best() -> None:
    summaries = [
        Summary("A", "uniform", 0.1234, 0.01, NAN, NAN, 3, metric="ece"),
        Summary("B", "uniform", 0.2, 0.01, NAN, NAN, 3, metric="ece"),
    ]
    text = _printed(summaries, width=80, force_terminal=True)
    assert "ECE (less is better) by target" in text
    assert "\x1b[1m0.123 ± 0.010\x1b[0m" in text
    assert "\x1b[1m0.200" not in text


def test_summary_table__a_single_run_shows_the_spread_of_its_subsets() -> None:
    summaries = [Summary("A", "uniform", 0.5, 0.012, NAN, NAN, 1, num_subsets=10)]
    assert "50.0 ± 1.2" in _printed(summaries, width=80)


def test_to_latex__is_the_same_table() -> None:
    summaries = [
        Summary("Soft_max", "uniform", 0.5, 0.01, 0.6, 0.02, 3),
        Summary("Soft_max", "backward:50", 0.4, 0.01, 0.8, 0.02, 3),
    ]
    assert to_latex(summaries, caption="Ours.").splitlines()[3:11] == [
        r"  \begin{tabular}{lrr}",
        r"    \toprule",
        r"    Accuracy in \% & uniform & backward 50 \\",
        r"    \midrule",
        r"    Soft\_max & 50.0 $\pm$ 1.0 & 40.0 $\pm$ 1.0 \\",
        r"    PC Soft\_max & \textbf{60.0 $\pm$ 2.0} & \textbf{80.0 $\pm$ 2.0} \\",
        r"    \bottomrule",
        r"  \end{tabular}",
    ]


def test_target_label__names_for_people() -> None:
    names = ("forward:50", "dirichlet:1:seed3", "knock_out:3,7", "as_is", "a:b.txt")
    assert [target_label(name) for name in names] == [
        "forward 50",
        "dirichlet 1 seed3",
        "knock out 3,7",
        "as is",
        "a:b.txt",
    ]
