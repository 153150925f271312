"""Answers as rows and files: the five likeliest classes, under the target prior."""

import csv
import io
import math
import sys
from pathlib import Path

import pytest
import torch

from tailshift.priors import uniform
from tailshift.serving import answer_rows, write_answers
from tailshift.serving.prediction_table import print_answers

NAMES = ["cat", 'd"o,g', "Größe 猫", "new\nline", "e", "f"]


def _rows(num_classes: int = 6) -> list[dict[str, str | float]]:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 0, 0, 0, 0, 0]])
    return answer_rows(
        ["a.jpg", "b/ü, 1.jpg"],
        logits[:, :num_classes],
        NAMES[:num_classes],
        logit_prior=uniform(num_classes),
        target_prior=uniform(num_classes),
    )


def test_answer_rows__by_hand() -> None:
    """Logits 0, 1 compensated to 1/4, 3/4 are odds of e·3 : 1."""
    [row] = answer_rows(
        ["x"],
        torch.tensor([[0.0, 1.0]]),
        ["cat", "dog"],
        logit_prior=[0.5, 0.5],
        target_prior=[0.25, 0.75],
    )
    share = 3 * math.e / (3 * math.e + 1)
    assert list(row) == ["path", "predicted", "probability", "class_2", "probability_2"]
    assert (row["path"], row["predicted"], row["class_2"]) == ("x", "dog", "cat")
    assert row["probability"] == pytest.approx(share)
    assert row["probability_2"] == pytest.approx(1 - share)


def test_answer_rows__five_of_six() -> None:
    row = _rows()[0]
    assert [row[key] for key in row if "class" in key or key == "predicted"] == [
        "f",
        "e",
        "new\nline",
        "Größe 猫",
        'd"o,g',
    ]
    shares = [row[key] for key in row if "probability" in key]
    assert shares == sorted(shares, reverse=True)


def test_write_answers__csv_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    write_answers(path, _rows())
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    expected = [
        {key: v if isinstance(v, str) else f"{v:.6f}" for key, v in row.items()}
        for row in _rows()
    ]
    assert found == expected


def test_print_answers__no_formula_reaches_a_spreadsheet() -> None:
    file = io.StringIO()
    rows = answer_rows(
        ["=x.png", "\t=y.png"],
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        ["=1+1", "-0.5"],
        logit_prior=uniform(2),
        target_prior=uniform(2),
    )
    print_answers(file, rows)
    assert file.getvalue().splitlines()[1:] == [
        "'=x.png,'=1+1,0.731059,-0.5,0.268941",
        "'\t=y.png,-0.5,0.731059,'=1+1,0.268941",
    ]


def test_write_answers__parquet_is_read_back(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_answers(tmp_path / "answers.parquet", _rows())
    assert parquet.read_table(tmp_path / "answers.parquet").to_pylist() == _rows()


def test_write_answers__refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="end") as suffix:
        write_answers(Path("a.xlsx"), _rows())
    assert str(suffix.value) == (
        "`output` must end in .csv or .parquet, but is a.xlsx."
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        write_answers(tmp_path / "a.parquet", _rows())
    assert str(missing.value) == (
        "Parquet tables need the package pyarrow, which is not installed. Install it "
        "with `pip install tailshift[datasets]`, or write a .csv file."
    )
    assert list(tmp_path.iterdir()) == []
