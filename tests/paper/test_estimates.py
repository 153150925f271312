"""What would be trained, as the terminal shows it."""

import io

import pytest
from rich.console import Console

from tailshift.paper.duration import Estimate, duration, estimate_table


def test_estimate_table__sums_up() -> None:
    estimates = [
        Estimate("digits_lt", seed=0, num_steps=1500, seconds_per_step=0.02),
        Estimate("digits_lt", seed=1, num_steps=300, seconds_per_step=0.5),
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(estimate_table(estimates))
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["digits_lt", "0", "1,500", "20", "30", "s"] in rows
    assert ["digits_lt", "1", "300", "500", "2", "min", "30", "s"] in rows
    assert ["2", "runs", "3", "min"] in rows


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (3600, "1 h"), (90_061, "1 d 1 h")],
)
def test_duration__has_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
