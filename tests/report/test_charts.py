"""The charts show the numbers of the page's tables, at the right places."""

import math
import re

import pytest

from tailshift.evaluation.summary import Summary
from tailshift.report.curves import probability_curves
from tailshift.report.page.charts import (
    Chart,
    ChartLine,
    average_probability_chart,
    class_counts_chart,
    target_shift_chart,
)
from tailshift.report.runs import summarise_runs
from tailshift.targets import PAPER_TARGETS


def _values(chart: Chart, line: ChartLine) -> list[float]:
    """Read the line's values off the y axis, as a reader does."""
    numbers = [float(number) for number in line.path.removeprefix("M").split()]
    assert numbers[::2] == [place + 0.5 for place in range(chart.num_places)]
    (y0, low), *_, (y1, high) = [(y, float(text)) for y, text in chart.y_ticks]
    return [low + (high - low) * (y - y0) / (y1 - y0) for y in numbers[1::2]]


def test_target_shift_chart__shows_every_mean_and_deviation(make_runs) -> None:
    summaries = summarise_runs(make_runs())
    chart = target_shift_chart(summaries)
    assert [(line.name, line.is_dashed, line.column) for line in chart.lines] == [
        ("Softmax", True, 1),
        ("PC Softmax", False, 2),
        ("Balanced Softmax", True, 3),
        ("PC Balanced Softmax", False, 4),
        ("LADE", False, 5),
    ]
    for line, method, score in (
        (chart.lines[0], "Softmax", "raw"),
        (chart.lines[3], "Balanced Softmax", "compensated"),
    ):
        expected = [s for s in summaries if s.method == method]
        means = [100 * getattr(s, f"{score}_mean") for s in expected]
        assert _values(chart, line) == pytest.approx(means, abs=0.01)
        (y0, low), *_, (y1, high) = [(y, float(text)) for y, text in chart.y_ticks]
        lengths = [(b - a) * (high - low) / (y0 - y1) for _, a, b in line.errors]
        deviations = [200 * getattr(s, f"{score}_sd") for s in expected]
        assert lengths == pytest.approx([d for d in deviations if d > 0], abs=0.02)
    assert len({line.colour for line in chart.lines}) == 3
    assert " ".join(t for _, t in chart.x_ticks) == "50 25 10 5 2 1 2 5 10 25 50"
    ticks = [x for x, _ in chart.x_ticks]
    assert chart.x_notes == [
        (ticks[2], "← forward"),
        (ticks[5], "uniform"),
        (ticks[8], "backward →"),
    ]


def test_target_shift_chart__a_single_run_has_no_error_bars() -> None:
    summaries = [
        Summary("LADE", t, 0.5, 0.0, 0.6, 0.0, 1, compensates=True)
        for t in PAPER_TARGETS
    ]
    chart = target_shift_chart(summaries)
    [line] = chart.lines
    assert line.errors == []
    assert _values(chart, line) == pytest.approx([60.0] * 11)


def test_average_probability_chart__re_targeting_flattens_softmax(make_runs) -> None:
    curves = probability_curves(make_runs())
    chart = average_probability_chart(curves, list("abcdefghij"), first_column=3)
    assert [(line.name, line.is_dashed, line.column) for line in chart.lines] == [
        ("Softmax", True, 3),
        ("PC Softmax", False, 4),
        ("Balanced Softmax", False, 5),
        ("LADE", False, 6),
    ]
    raw, retargeted = (_values(chart, line) for line in chart.lines[:2])
    assert raw == pytest.approx((100 * curves[0].mean).tolist(), abs=0.01)
    assert raw[0] > 20 > 5 > raw[-1]
    assert max(retargeted) - min(retargeted) < 3
    [(level, _)] = chart.levels
    assert level == pytest.approx({t: y for y, t in chart.y_ticks}["10"])


def test_class_counts_chart__bars_on_a_log_axis() -> None:
    chart = class_counts_chart([300, 40, 5, 0], ["b", "d", "a", "c"], "images")
    heights = {text: y for y, text in chart.y_ticks}
    decade = heights["10"] - heights["100"]
    tops = [float(y) for y in re.findall(r"100V([\d.]+)H", chart.bars)]
    expected = [heights["100"] - math.log10(n / 100) * decade for n in (300, 40, 5)]
    assert tops == pytest.approx(expected, abs=0.05)
    assert [text for _, text in chart.levels] == [
        "many: more than 100",
        "few: fewer than 20",
    ]
    assert chart.levels[0][0] == heights["100"]


def test_class_axis__names_ranks_and_long_names() -> None:
    long = class_counts_chart([2, 1], ["<em>" + "x" * 40, "two\nlines"], "images")
    assert [text for _, text in long.x_ticks] == ["<em>xxxxxxxxx…", "two lines"]
    assert not long.is_slanted
    assert class_counts_chart([1] * 3, ["x" * 40] * 3, "images").is_slanted
    many = class_counts_chart(range(1000, 0, -1), ["kea"] * 1000, "images")
    assert [text for _, text in many.x_ticks] == ["1", "250", "500", "750", "1,000"]
    assert many.bars.count("M") == 1000  # equal names keep their own bars
