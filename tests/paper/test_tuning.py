"""A search as table and CSV."""

import io
from pathlib import Path

from rich.console import Console

from tailshift.paper.tune import Trial, tuning_table, write_tuning_csv

TRIALS = [
    Trial(0.01, 0.1, 0.75, error=0.03),
    Trial(0.01, 0.5, float("nan")),
    Trial(0.1, 0.1, 0.8125),
    Trial(0.1, 0.5, 0.75, error=0.04),
]


def test_tuning_table__has_alpha_down_and_lam_across() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(tuning_table(TRIALS))
    assert isinstance(console.file, io.StringIO)
    words = console.file.getvalue().replace("─", "").split()
    assert " ".join(words) == (
        "Class-balanced validation accuracy in % "
        "α λ = 0.1 λ = 0.5 "
        "0.01 75.0 – "
        "0.1 81.2 75.0 "
        "best: α = 0.1, λ = 0.1: 81.2 % "
        "1 of 2 others within two standard errors"
    )


def test_write_tuning_csv__leaves_a_diverged_score_empty(tmp_path: Path) -> None:
    write_tuning_csv(tmp_path / "tuning.csv", TRIALS)
    assert (tmp_path / "tuning.csv").read_text(encoding="utf-8") == (
        "alpha,lam,score,error\n"
        "0.01,0.1,75.00,3.00\n"
        "0.01,0.5,,\n"
        "0.1,0.1,81.25,\n"
        "0.1,0.5,75.00,4.00\n"
    )
