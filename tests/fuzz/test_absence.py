"""Without packages that are optional, every command that needs one names its extra."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from PIL import Image

from tailshift import Run
from tailshift.cli import main

COMMANDS: dict[str, tuple[str, ...]] = {
    "data check parquet:{folder}": ("pyarrow",),
    "data check datasets:{folder}": ("datasets",),
    "predict {run} {image} -o {folder}/{n}.parquet": ("pyarrow",),
    "export {run} -o {folder}/{n}.onnx": ("onnx", "onnxscript", "onnxruntime"),
    "serve {run}": ("fastapi", "uvicorn", "python_multipart", "onnxruntime"),
    "train digits_lt --set train.track=mlflow -o {folder}/{n}": ("mlflow",),
    "train digits_lt --set train.track=wandb -o {folder}/{n}": ("wandb",),
    "train digits_lt --set train.track=tensorboard -o {folder}/{n}": (
        "torch.utils.tensorboard",
    ),
}
OTHERS = ("lightning", "transformers", "imblearn", "accelerate", "pandas")


@st.composite
def absences(draw: st.DrawFn) -> tuple[str, frozenset[str]]:
    """Give a command, and packages that are missing, one at least that it needs."""
    command = draw(st.sampled_from(sorted(COMMANDS)))
    needed = COMMANDS[command]
    missing = draw(st.sets(st.sampled_from(needed), min_size=1))
    return command, frozenset(missing | draw(st.sets(st.sampled_from(OTHERS))))


@contextmanager
def _without(packages: frozenset[str]) -> Iterator[None]:
    """Let an import of these packages fail, as if they were not installed."""
    inside = tuple(f"{package}." for package in packages)
    names = {name for name in sys.modules if name.startswith(inside)} | packages
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _run(arguments: list[str]) -> tuple[object, str]:
    """Run a command line; return its exit code, and all that it says."""
    said = io.StringIO()
    with (
        redirect_stdout(said),
        redirect_stderr(said),
        patch("sys.argv", ["tailshift", *arguments]),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return end.value.code, said.getvalue()


@pytest.fixture
def command_without(digits_run: Run, tmp_path: Path) -> Callable[[Any], None]:
    """Run a command without packages; what it says is raised."""
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    (tmp_path / "a.parquet").touch()
    numbers = count()

    def run(value: tuple[str, frozenset[str]]) -> None:
        command, missing = value
        texts = {"folder": tmp_path, "image": tmp_path / "image.png"}
        texts["run"] = digits_run.directory
        line = command.format(**texts, n=next(numbers))
        with _without(missing):
            code, said = _run(line.split())
        assert code in (1, 2)
        assert "Traceback" not in said
        assert "fault of tailshift" not in said
        [sentence] = [text for text in said.splitlines() if "not installed" in text]
        assert "tailshift[" in sentence
        raise ModuleNotFoundError(sentence)

    return run


def test_command__names_the_extra_that_is_missing(
    command_without: Callable[[Any], None], fuzz: Callable[..., Any]
) -> None:
    tally = fuzz("absent packages", absences(), command_without, 12)
    assert tally.results == 0


@pytest.mark.slow
def test_command__names_the_extra_many_times(
    command_without: Callable[[Any], None], fuzz: Callable[..., Any]
) -> None:
    tally = fuzz("absent packages", absences(), command_without, 200, is_long=True)
    assert tally.results == 0
