"""Results of a search as a table, a CSV file and a heat map."""

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from tailshift.paper.tune import Trial
from tailshift.paper.tune_results import (
    heat_map,
    save_heat_map,
    tuning_table,
    write_tuning_csv,
)

TRIALS = [
    Trial(0.01, 0.1, 0.75, error=0.03),
    Trial(0.01, 0.5, float("nan")),
    Trial(0.1, 0.1, 0.8125),
    Trial(0.1, 0.5, 0.75, error=0.04),
]
SQUARE = [
    Trial(0.01, 0.1, 0.75),
    Trial(0.01, 0.5, float("nan")),
    Trial(0.1, 0.1, 0.5),
    Trial(0.1, 0.5, 0.8),
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


def test_heat_map__has_alpha_down_and_lam_across() -> None:
    axes = heat_map(SQUARE, title="digits").axes[0]
    [image] = axes.images
    scores = np.ma.getdata(image.get_array()).astype(float)
    np.testing.assert_allclose(scores, [[75, np.nan], [50, 80]])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.01", "0.1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "0.5"]
    assert [text.get_text() for text in axes.texts] == ["75.0", "–", "50.0", "80.0"]
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_title()) == (
        "α",
        "λ",
        "digits",
    )


def test_heat_map__frames_the_best() -> None:
    [frame] = heat_map(SQUARE, title="digits").axes[0].patches
    assert frame.get_xy() == (0.5, 0.5)  # the cell of row 1, column 1


def test_save_heat_map__writes_the_same_bytes_again(tmp_path: Path) -> None:
    first = save_heat_map(tmp_path / "first", SQUARE, title="digits")
    again = save_heat_map(tmp_path / "again.svg", SQUARE, title="digits")
    assert [path.name for path in first] == ["first.svg", "first.png"]
    assert [path.name for path in again] == ["again.svg", "again.png"]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
