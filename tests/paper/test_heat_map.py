"""The heat map shows each score at its place."""

from pathlib import Path

import numpy as np

from tailshift.paper.tune import Trial, heat_map, save_heat_map

TRIALS = [
    Trial(0.01, 0.1, 0.75),
    Trial(0.01, 0.5, float("nan")),
    Trial(0.1, 0.1, 0.5),
    Trial(0.1, 0.5, 0.8),
]


def test_heat_map__has_alpha_down_and_lam_across() -> None:
    axes = heat_map(TRIALS, title="digits").axes[0]
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
    [frame] = heat_map(TRIALS, title="digits").axes[0].patches
    assert frame.get_xy() == (0.5, 0.5)  # the cell of row 1, column 1


def test_save_heat_map__writes_the_same_bytes_again(tmp_path: Path) -> None:
    first = save_heat_map(tmp_path / "first", TRIALS, title="digits")
    again = save_heat_map(tmp_path / "again.svg", TRIALS, title="digits")
    assert [path.name for path in first] == ["first.svg", "first.png"]
    assert [path.name for path in again] == ["again.svg", "again.png"]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
