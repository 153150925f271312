"""A bar on a terminal, nothing elsewhere."""

import io

import pytest
from rich.console import Console

from tailshift.training.recorder import training_progress


def _shown(title: str, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None)
    with training_progress(title, 10, done=3, console=console) as progress:
        progress.step(0.51234, seconds=0.5, images=64)
    return file.getvalue()


def test_training_progress__says_how_far_how_well_and_how_fast() -> None:
    shown = _shown("digits_lt · LADE · seed 0", terminal=True)
    for part in ("digits_lt · LADE · seed 0", "4/10", "loss 0.512", "128 images/s"):
        assert part in shown


def test_training_progress__is_silent_elsewhere() -> None:
    assert _shown("digits_lt", terminal=False) == ""


def test_training_progress__goes_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with training_progress("digits_lt", 10) as progress:
        progress.step(0.5, seconds=0.0, images=64)
    assert capsys.readouterr() == ("", "")


def test_training_progress__shows_a_title_as_it_is() -> None:
    assert "my [/recipe] {x}" in _shown("my [/recipe] {x}", terminal=True)
