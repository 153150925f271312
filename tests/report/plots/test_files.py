"""Files are whole, valid and the same each time."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from tailshift.report.plots.canvas import figure_paths, print_style, save_figure


@print_style()
def _figure(title: str = "title") -> Figure:
    figure = Figure(figsize=(2, 1), layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 2, 3], label="line")
    axes.set_title(title)
    axes.legend()
    return figure


def test_save_figure__same_bytes_again_and_no_date(tmp_path: Path) -> None:
    first, again = figure_paths(tmp_path, "a"), figure_paths(tmp_path, "b")
    assert [path.name for path in first] == ["a.svg", "a.png"]
    save_figure(_figure(), first)
    save_figure(_figure(), again)
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    text = first[0].read_text(encoding="utf-8")
    assert "dc:date" not in text
    with Image.open(first[1]) as image:
        assert "Software" not in image.info
        assert image.size == (600, 300)


def test_save_figure__svg_is_valid_and_holds_text(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    save_figure(_figure("<script>alert(1)</script> & ]]>"), [path])
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "script" not in tags
    assert "<script>alert(1)</script> & ]]>" in [e.text for e in root.iter()]


def test_save_figure__letters_that_the_font_lacks(tmp_path: Path) -> None:
    paths = figure_paths(tmp_path, "a")
    save_figure(_figure("猫 🐈"), paths)  # a warning would be an error here
    assert "猫 🐈" in paths[0].read_text(encoding="utf-8")


def test_save_figure__does_not_overwrite_unasked(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_text("mine")
    with pytest.raises(FileExistsError) as error:
        save_figure(_figure(), [path])
    assert str(error.value) == f"{path} exists. Name another file, or overwrite it."
    assert path.read_text() == "mine"
    save_figure(_figure(), [path], overwrite=True)
    assert path.read_text().startswith("<?xml")
