"""Charts of the report: coordinates for inline SVG that fits any width."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tailshift.evaluation.summary import Summary
from tailshift.report.curves import ProbabilityCurve, ShiftCurve, shift_curves
from tailshift.report.rows import split_target
from tailshift.report.style import (
    MAX_CLASS_NAME,
    MAX_NAMED_CLASSES,
    method_styles,
    one_line,
)

_GROUP_LEVELS = {100: "many: more than 100", 20: "few: fewer than 20"}
_SHAPES = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "square": "M-3.6-3.6h7.2v7.2h-7.2Z",
    "diamond": "M0-5 5 0 0 5-5 0Z",
    "triangle-up": "M0-5 4.6 3.6H-4.6Z",
    "triangle-down": "M0 5 4.6-3.6H-4.6Z",
    "pentagon": "M0-5 4.8-1.5 2.9 4H-2.9L-4.8-1.5Z",
}
Ticks = list[tuple[float, str]]
"""Labels, each at % of the width, or of the height from the top."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart: dashed as trained, solid re-targeted.

    Attributes:
        column: Column of the chart's table with the same numbers.
        path: SVG path, in places of the x axis and % of the height from the top.
        errors: Error bars: x, upper and lower end in %.
        markers: Points to mark: x and y in %.
        shape: SVG path of a marker.
    """

    name: str
    colour: str
    is_dashed: bool
    column: int
    path: str
    errors: list[tuple[float, float, float]]
    markers: list[tuple[float, float]]
    shape: str


@dataclass(frozen=True)
class Chart:
    """A figure whose numbers stand in a table of the page, a row for each place.

    Attributes:
        name: Element id of the figure.
        table: Element id of the table.
        num_places: Places on the x axis.
        x_notes: Second line below the axis.
        bars: SVG path of the bars, which show column 1; empty for none.
        levels: Dotted lines across the chart.
    """

    name: str
    table: str
    num_places: int
    y_title: str
    y_ticks: Ticks
    x_ticks: Ticks
    x_title: str = ""
    x_notes: Ticks | None = None
    lines: Sequence[ChartLine] = ()
    bars: str = ""
    levels: Ticks | None = None

    @property
    def is_slanted(self) -> bool:
        """Whether the labels of the x axis are too long for a phone."""
        return sum(len(text) for _, text in self.x_ticks) > 36

    @property
    def foot(self) -> int:
        """Pixels that the labels of the x axis take."""
        if self.is_slanted:
            return 22 + 6 * max(len(text) for _, text in self.x_ticks)
        return 42 if self.x_notes else 24


class _Axis:
    """A linear y axis between two round numbers that enclose the values."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        exact = (high - low) / 5 or 1.0
        power = 10.0 ** math.floor(math.log10(exact))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= 0.999 * exact)
        first, last = math.floor(low / step), math.ceil(high / step)
        self._low, self._high = step * first, step * max(last, first + 1)
        steps = range(first, max(last, first + 1) + 1)
        self.ticks = [(self.y(step * k), f"{step * k:g}") for k in steps]

    def y(self, value: float) -> float:
        """Return where a value is, in % from the top."""
        return round(100 * (self._high - value) / (self._high - self._low), 2)


def target_shift_chart(summaries: Iterable[Summary]) -> Chart:
    """Return the chart of accuracy by target, with ± 1 standard deviation.

    Args:
        summaries: Accuracies, as in the table ``by-target``.
    """
    targets, curves = shift_curves(summaries)
    known = [
        mean + sign * sd
        for curve in curves
        for mean, sd in zip(curve.means, curve.sds, strict=True)
        for sign in (-1, 1)
        if not math.isnan(mean)
    ]
    axis = _Axis([100 * value for value in known])
    styles = method_styles({curve.method: curve.key for curve in curves})
    return Chart(
        name="target-shift",
        table="by-target",
        num_places=len(targets),
        y_title="Accuracy in %",
        y_ticks=axis.ticks,
        x_ticks=_labels([_tick(target) for target in targets]),
        x_notes=_kinds(targets),
        lines=[
            _line(curve, styles[curve.method], axis, column, curve.means, curve.sds)
            for column, curve in enumerate(curves, start=1)
        ],
    )


def average_probability_chart(
    curves: Sequence[ProbabilityCurve], class_names: Sequence[str], first_column: int
) -> Chart:
    """Return the chart of mean probabilities by class (Figure 2).

    Args:
        curves: Mean probabilities by rank, a line each.
        class_names: By rank.
        first_column: Column of the first curve in the table ``by-class``.
    """
    means = [curve.mean.tolist() for curve in curves]
    uniform = 100 / len(class_names)
    axis = _Axis([0, uniform, *(100 * max(line) for line in means)])
    styles = method_styles({curve.method: curve.key for curve in curves})
    return Chart(
        name="average-probability",
        y_title="Average probability in %",
        y_ticks=axis.ticks,
        lines=[
            _line(curve, styles[curve.method], axis, first_column + i, means[i])
            for i, curve in enumerate(curves)
        ],
        levels=[(axis.y(uniform), "uniform, 1/C")],
        **_class_axis(class_names),
    )


def class_counts_chart(
    counts: Sequence[int], class_names: Sequence[str], unit: str
) -> Chart:
    """Return the bar chart of training counts by class, on a log axis.

    Args:
        counts: By rank, at least one of them positive.
        class_names: By rank.
        unit: Plural name of the samples.
    """
    lowest = math.log10(max(min(counts), 1) / 2)
    highest = math.log10(max(counts)) + 0.1

    def y(count: float) -> float:
        return round(100 * (highest - math.log10(count)) / (highest - lowest), 2)

    gap = 0.1 if len(counts) <= 100 else 0.0
    powers = [10**k for k in range(math.ceil(lowest), math.floor(highest) + 1)]
    return Chart(
        name="class-counts",
        y_title=f"Training {unit}",
        y_ticks=[(y(power), f"{power:,}") for power in powers],
        bars="".join(
            f"M{rank + gap:g} 100V{y(count)}H{rank + 1 - gap:g}V100Z"
            for rank, count in enumerate(counts)
            if count > 0
        ),
        levels=[
            (y(border), text)
            for border, text in _GROUP_LEVELS.items()
            if min(counts) < border < max(counts)
        ],
        **_class_axis(class_names),
    )


def _x(place: float, num_places: int) -> float:
    return round(100 * (place + 0.5) / num_places, 2)


def _labels(texts: Sequence[str]) -> Ticks:
    return [(_x(place, len(texts)), text) for place, text in enumerate(texts)]


def _line(
    curve: ShiftCurve | ProbabilityCurve,
    style: tuple[str, str],
    axis: _Axis,
    column: int,
    values: Sequence[float],
    sds: Sequence[float] = (),
) -> ChartLine:
    """Return the line through fractions; NaN leaves a gap."""
    points = [
        (place, axis.y(100 * value))
        for place, value in enumerate(values)
        if not math.isnan(value)
    ]
    path = " ".join(f"{place + 0.5:g} {y}" for place, y in points)
    errors = [
        (
            _x(place, len(values)),
            axis.y(100 * (values[place] + sd)),
            axis.y(100 * (values[place] - sd)),
        )
        for place, sd in enumerate(sds)
        if sd > 0
    ]
    marked = points if len(values) <= MAX_NAMED_CLASSES else []
    colour, symbol = style
    return ChartLine(
        name=curve.name,
        colour=colour,
        is_dashed=not curve.is_compensated,
        column=column,
        path=f"M{path}",
        errors=errors,
        markers=[(_x(place, len(values)), y) for place, y in marked],
        shape=_SHAPES[symbol],
    )


def _tick(target: str) -> str:
    """Return the target's imbalance ratio, or the name of a target without one."""
    kind, ratio = split_target(target)
    return ratio or ("1" if kind == "uniform" else kind)


def _kinds(targets: Sequence[str]) -> Ticks:
    """Return the directions of shift, in the middle of their targets."""
    kinds = [split_target(target)[0] for target in targets]
    texts = {"forward": "← forward", "uniform": "uniform", "backward": "backward →"}
    places = {kind: [x for x, k in enumerate(kinds) if k == kind] for kind in texts}
    return [
        (_x(sum(found) / len(found), len(targets)), texts[kind])
        for kind, found in places.items()
        if found
    ]


def _class_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return the x axis of classes: names, or ranks if there are many."""
    axis = {"table": "by-class", "num_places": len(names)}
    if len(names) <= MAX_NAMED_CLASSES:
        labels = _labels([_shortened(one_line(name)) for name in names])
        return axis | {"x_ticks": labels, "x_title": "Class"}
    ranks = [0, *(round(part * len(names) / 4) - 1 for part in range(1, 5))]
    labels = [(_x(rank, len(names)), f"{rank + 1:,}") for rank in ranks]
    return axis | {"x_ticks": labels, "x_title": "Rank of the class"}


def _shortened(name: str) -> str:
    if len(name) <= MAX_CLASS_NAME:
        return name
    return f"{name[: MAX_CLASS_NAME - 1]}…"
