"""A run that version 0.1 left half way is loaded, evaluated, resumed and exported.

It was made with ``tailshift train digits_lt --method lade --set train.epochs=4`` on a
CPU and Ctrl-C in the third epoch; the expected values are those of that version.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailshift as ts
from tailshift.runs.checkpoint import read_position
from tailshift.serving.export import export_onnx
from tailshift.targets import PAPER_TARGETS

Command = Callable[..., Any]

KEPT = Path(__file__).parents[1] / "data" / "kept"
COMPENSATED = [
    *(57.04, 56.05, 47.74, 45.60, 35.65),  # forward 50 … 2
    27.40,
    *(18.66, 16.00, 34.67, 36.94, 38.52),  # backward 2 … 50
]
"""Accuracies in % on the paper's targets, at the interruption."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of the run, to change."""
    return Path(shutil.copytree(KEPT / "run_v0_1", tmp_path / "run"))


def test_kept_run__loads(run: Path) -> None:
    loaded = ts.load_run(run)
    assert not loaded.is_finished
    assert [record["epoch"] for record in loaded.metrics] == [1, 2]
    assert loaded.environment["packages"]["tailshift"] == "0.1.0"
    settings = ["method.name=lade", "train.epochs=4", "train.accelerator=cpu"]
    assert loaded.config == ts.load_recipe("digits_lt", settings)
    position = read_position(run / "checkpoint.safetensors")
    assert (position.epoch, position.batch) == (2, 1)


def test_kept_run__is_evaluated_and_reported(tailshift: Command, run: Path) -> None:
    records = ts.evaluate(
        ts.load_run(run).predictions("test"), PAPER_TARGETS, sampling="first"
    )
    accuracies = [100 * r.accuracy for r in records if r.compensated]
    assert accuracies == pytest.approx(COMPENSATED, abs=0.005)
    assert tailshift("report", run, "-o", "report").code == 0
    page = Path("report/report.html").read_text(encoding="utf-8")
    assert "LADE" in page


def test_kept_run__resumes_to_the_same_logits(tailshift: Command, run: Path) -> None:
    """The tolerance is for other CPUs; from here to the end the logits move by 1.6."""
    before = ts.load_run(run).predictions("test").logits
    result = tailshift("train", "--resume", "--output", run)
    assert (result.code, result.complaints) == (0, [])
    loaded = ts.load_run(run)
    assert loaded.is_finished
    assert [record["epoch"] for record in loaded.metrics] == [1, 2, 3, 4]
    logits = loaded.predictions("test").logits
    assert (logits - before).abs().max() > 1
    expected = np.load(KEPT / "run_v0_1_logits.npy")  # of every tenth image
    np.testing.assert_allclose(logits[::10].numpy(), expected, rtol=0, atol=1e-4)


def test_kept_run__is_exported(run: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    difference = export_onnx(ts.load_run(run), run / "model.onnx")
    assert (run / "model.onnx").is_file()
    assert difference < 1e-4
