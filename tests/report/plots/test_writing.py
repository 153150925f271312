"""All figures of some runs: which are made, and that they are legible and safe."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image

from tailshift.predictions import Predictions
from tailshift.report import ReportRun
from tailshift.report.plots import FIGURES, write_figures
from tailshift.report.plots.canvas import POINTS

HOSTILE = (
    "<script>x</script>",
    r"$\frac{",
    "$1 & $2",
    "]]>",
    "_hidden",
    "",
    "a\nb\x00",
    '"><svg onload=x>',
    "猫",
    "%s{0}",
)


def test_write_figures__all_of_them_valid(make_runs, tmp_path: Path) -> None:
    runs = make_runs(num_seeds=2, class_names=HOSTILE)
    runs += [ReportRun("<b>$x_", r.seed, r.predictions) for r in runs[:2]]
    paths = write_figures(runs, tmp_path / "new")
    names = [f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
    assert [path.name for path in paths] == names
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert np.asarray(image.convert("L")).std() > 5  # not blank
        else:
            _check_svg(path)


def _check_svg(path: Path) -> None:
    root = ET.parse(path).getroot()
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "script" not in tags
    assert not any("onload" in element.attrib for element in root.iter())
    texts = [element.text for element in root.iter() if element.text]
    if path.stem in ("class_counts", "average_probability", "accuracy_change"):
        for name in ("<script>x</sc…", r"$\frac{", "$1 & $2", "]]>", "a b", "猫"):
            assert name in texts, path
    if path.stem in ("reliability", "class_logits", "average_probability"):
        assert "<b>$x_" in texts, path


@pytest.mark.parametrize("name", list(FIGURES))
def test_figures__letters_have_eight_points(make_runs, name: str) -> None:
    figure = FIGURES.get(name)(make_runs(num_seeds=1), "uniform")
    sizes = {
        text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip()
    }
    assert min(sizes) >= POINTS == 8
    assert figure.get_size_inches()[0] <= 7.1


def test_write_figures__leaves_out_what_cannot_be_drawn(tmp_path: Path) -> None:
    predictions = Predictions(torch.eye(3), torch.arange(3))
    notes: list[str] = []
    runs = [ReportRun("X", 0, predictions)]
    paths = write_figures(runs, tmp_path, announce=notes.append)
    names = list(dict.fromkeys(path.stem for path in paths))
    assert names == ["average_probability", "class_logits", "reliability"]
    reason = "the runs do not say how many training images each class has."
    assert notes == [
        "accuracy_change is skipped: compensation to uniform changes no answer of "
        "the runs.",
        f"class_counts is skipped: {reason}",
        f"target_shift is skipped: {reason}",
    ]


def test_write_figures__overwrites_nothing(make_runs, tmp_path: Path) -> None:
    (tmp_path / "reliability.png").write_text("mine")
    runs = make_runs(("LADE",), 1)
    with pytest.raises(FileExistsError) as error:
        write_figures(runs, tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'reliability.png'} exists. Replace it (--force) or name another "
        "folder."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["reliability.png"]
    write_figures(runs, tmp_path, figures=["reliability"], overwrite=True)
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_write_figures__unknown_name(make_runs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown") as error:
        write_figures(make_runs(num_seeds=1), tmp_path, figures=["reliabilty"])
    assert str(error.value) == (
        "unknown figure 'reliabilty'; did you mean 'reliability'? Known: "
        f"{', '.join(FIGURES)}"
    )


def test_write_figures__folder_is_a_file(make_runs, tmp_path: Path) -> None:
    path = tmp_path / "figures"
    path.write_text("mine")
    with pytest.raises(NotADirectoryError) as error:
        write_figures(make_runs(num_seeds=1), path)
    assert str(error.value) == f"{path} is a file, but must be a folder."
