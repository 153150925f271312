"""Names are shown as they are, panels fill the page, settings stay the user's."""

from io import BytesIO

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from tailshift.report.plots.canvas import (
    COLUMN,
    PAGE,
    POINTS,
    as_text,
    label_classes,
    line_look,
    method_looks,
    name_axes,
    new_panels,
    print_style,
)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("LADE", "LADE"),
        (r"$\frac{1}{0}$", r"$\frac{1}{0}$"),
        ("$5 or $6", "$5 or $6"),
        (r"a\$b", r"a\$b"),
        ("two\nlines\x00\x1b", "two lines"),
        ("_private", " _private"),
        ("x" * 50, "x" * 39 + "…"),
    ],
)
def test_as_text__is_shown_literally(name: str, shown: str) -> None:
    axes = Figure().subplots()
    axes.plot([0, 1], label=as_text(name))
    [text] = axes.legend().get_texts()
    assert text._preprocess_math(text.get_text()) == (shown, False)


@pytest.mark.parametrize(
    ("num_panels", "shape"), [(1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (9, (3, 3))]
)
def test_new_panels__rows_are_filled_evenly(
    num_panels: int, shape: tuple[int, int]
) -> None:
    figure, panels = new_panels(num_panels, height=2)
    assert len(panels) == len(figure.axes) == num_panels
    grid = panels[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    width = COLUMN if num_panels == 1 else PAGE
    assert tuple(figure.get_size_inches()) == (width, 2 * shape[0] + 0.5)


def test_new_panels__lowest_of_each_column_keeps_its_labels() -> None:
    _, panels = new_panels(5, height=2)
    shown = [
        axes.xaxis.get_major_ticks()[0].label1.get_visible()  # type: ignore[attr-defined]  # Tick has label1
        for axes in panels
    ]
    assert shown == [False, False, True, True, True]


def test_label_classes__names_or_ranks() -> None:
    axes = Figure().subplots()
    label_classes(axes, ["cat", "a very long name of a class"])
    texts = [label.get_text() for label in axes.get_xticklabels()]
    assert texts == ["cat", "a very long n…"]
    label_classes(axes, [f"class {c}" for c in range(100)])
    texts = [label.get_text() for label in axes.get_xticklabels()]
    assert texts == ["1", "", "50", "", "100"]
    assert list(axes.get_xticks()) == [0, 24, 49, 74, 99]


def test_method_looks__as_on_the_page() -> None:
    looks = method_looks({"Softmax": "softmax", "Mine": ""})
    assert looks["Softmax"] == {"color": "#D55E00", "marker": "o"}
    assert looks["Mine"] == {"color": "#CC79A7", "marker": "s"}
    assert line_look(True) == {"linestyle": "-"}
    assert line_look(False)["markerfacecolor"] == "white"


def test_print_style__ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mpl.rcParams, "font.size", 31.0)
    monkeypatch.setitem(mpl.rcParams, "axes.labelcolor", "red")
    with print_style():
        assert mpl.rcParams["font.size"] == POINTS
        assert mpl.rcParams["axes.labelcolor"] == "black"
    assert mpl.rcParams["font.size"] == 31.0
    assert mpl.rcParams["axes.labelcolor"] == "red"


def test_name_axes__letters_are_as_large_as_the_others() -> None:
    with print_style():
        figure, _ = new_panels(2, height=1)
        name_axes(figure, x="confidence", y="accuracy")
        figure.savefig(BytesIO())
        sizes = {text.get_text(): text.get_fontsize() for text in figure.texts}
    assert sizes == {"confidence": POINTS, "accuracy": POINTS}
