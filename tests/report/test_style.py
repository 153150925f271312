"""Colours that stay with their method, and names that stay text."""

from itertools import pairwise

import pytest

from tailshift.report.style import method_colours, method_styles, one_line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two\nlines\x00\ud800", "two lines"),
        ("\u202eevil", "evil"),
        ("می‌خواهم 漢字", "می‌خواهم 漢字"),
        ("</script> &lt;", "</script> &lt;"),
    ],
)
def test_one_line__keeps_all_that_can_be_seen(text: str, expected: str) -> None:
    assert one_line(text) == expected


def test_method_colours__the_paper_s_methods_keep_theirs() -> None:
    colours = method_colours(
        {"Focal": "focal", "Softmax": "softmax", "LDAM": "ldam", "LADE": "lade"}
    )
    alone = method_colours({"LADE": "lade"})
    assert list(colours) == ["Focal", "Softmax", "LDAM", "LADE"]
    assert len(set(colours.values())) == 4
    assert colours["LADE"] == alone["LADE"]


def test_method_styles__neighbours_differ_in_their_marker_too() -> None:
    styles = method_styles({f"method {i}": "" for i in range(20)})
    symbols = [symbol for _, symbol in styles.values()]
    assert len(styles) == 20
    assert all(a != b for a, b in pairwise(symbols))
