"""On SIGTERM the command saves, and its exit code tells a scheduler to requeue it."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailshift as ts
from tailshift.training.progress import TrainingProgress

Command = Callable[..., Any]
LIBC = None if sys.platform == "win32" else ctypes.CDLL(None)


def _terminate(*args: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


def test_train__preempted_ends_with_75_and_resumes(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "digits_lt", "--set", "train.epochs=1", "--output", "run")
    with monkeypatch.context() as patched:
        patched.setattr(TrainingProgress, "step", _terminate)
        result = tailshift(*command)
    assert result.code == 75
    assert result.err.splitlines()[-1] == (
        "pre-empted and saved; resume with tailshift train --resume --output run"
    )
    assert not ts.load_run("run").is_finished
    result = tailshift("train", "--resume", "--output", "run", "--detect-anomaly")
    assert result.code == 0
    assert ts.load_run("run").is_finished
    assert not ts.load_run("run").config.train.detect_anomaly  # as it was begun


@pytest.mark.parametrize(
    "command",
    [
        ("tune", "digits_lt", "--alphas", "0.1", "--lams", "0.5", "-o", "search"),
        ("reproduce", "figure2", "--set", "data.name=digits_lt", "--quick"),
    ],
    ids=["tune", "reproduce"],
)
def test_tune_and_reproduce__preempted_name_no_single_run(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """They advised to resume the one run under way, which `tune` trains on a part."""
    settings = ("method.name=lade", "model.name=digits_net", "train.epochs=1")
    settings = settings if command[0] == "tune" else settings[1:]
    given = [part for setting in settings for part in ("--set", setting)]
    with monkeypatch.context() as patched:
        patched.setattr(TrainingProgress, "step", _terminate)
        result = tailshift(*command, *given)
    assert result.code == 75
    assert result.err == "pre-empted and saved: the same command resumes.\n"
    assert tailshift(*command, *given).code == 0


def test_train__preempted_before_training(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailshift.training.resolve.check_splits", _terminate)
    result = tailshift("train", "digits_lt", "--output", "run")
    assert (result.code, result.err) == (75, "")


SIGNALLED = """
import os
from tailshift.training.{module} import {owner}

method = {owner}.{name}

def signalled(self, *args):
    if {condition}:
        os.kill(os.getpid(), {number})
    return method(self, *args)

{owner}.{name} = signalled
import tailshift.cli
tailshift.cli.main()
"""
LAST_STEP = ("loop", "Trainer", "end_epoch", "self.position.epoch == 1")
EVALUATION = ("recorder", "Recorder", "_save_predictions", "True")


@pytest.mark.parametrize(
    ("place", "number", "code", "message", "is_finished"),
    [
        (LAST_STEP, signal.SIGINT, 130, "interrupted; runs/softmax-seed0 is", True),
        (LAST_STEP, signal.SIGTERM, 75, "pre-empted and saved; resume with", False),
        (EVALUATION, signal.SIGINT, 130, "", False),
        (EVALUATION, signal.SIGTERM, 75, "", False),
    ],
)
def test_train__a_late_signal_ends_all_seeds(
    tmp_path: Path,
    place: tuple[str, str, str, str],
    number: int,
    code: int,
    message: str,
    is_finished: bool,
) -> None:
    """It was lost in the last step, and the next seed was trained to its end."""
    command = ["train", "digits_lt", "--method", "softmax", "--seeds", "0,1"]
    command += ["--output", "runs", "--set", "train.epochs=2"]
    names = zip(("module", "owner", "name", "condition"), place, strict=True)
    program = SIGNALLED.format(**dict(names), number=int(number))
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    runs = tmp_path / "runs"
    assert [path.name for path in runs.iterdir()] == ["softmax-seed0"]
    run = ts.load_run(runs / "softmax-seed0")
    assert (run.is_finished, len(run.metrics)) == (is_finished, 2)
    assert ts.train(run.config, output=run.directory, resume=True).is_finished


SWALLOWED = """
import os, signal
try:
    os.kill(os.getpid(), {number})
    for _ in range(1000):
        pass
except BaseException:
    pass
print("goes on")
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)]
)
@pytest.mark.parametrize("name", ["plugin.py", "typer.py"])
def test_main__a_signal_inside_an_import_ends_the_command(
    tmp_path: Path, name: str, number: int, code: int
) -> None:
    """In a module that swallows it, before `main` runs (Typer) and after."""
    (tmp_path / name).write_text(SWALLOWED.format(number=int(number)))
    plugin = ["--plugin", name] if name == "plugin.py" else []
    done = subprocess.run(
        [sys.executable, "-m", "tailshift", *plugin, "list", "methods"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


AT_EXIT = {
    "Python": "atexit.register(os.kill, os.getpid(), {number})",
    "the process": "libc.on_exit(libc.kill, {number})",  # kill(0, number): its group
}


@pytest.mark.skipif(not hasattr(LIBC, "on_exit"), reason="needs the C library of GNU")
@pytest.mark.parametrize("ends", AT_EXIT)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_main__a_signal_while_it_ends_changes_nothing(
    tmp_path: Path, number: int, ends: str
) -> None:
    """A job that was done failed if its time limit's warning came just then."""
    plugin = "import atexit, ctypes, os\nlibc = ctypes.CDLL(None)\n"
    plugin += AT_EXIT[ends].format(number=int(number))
    (tmp_path / "plugin.py").write_text(plugin)
    done = subprocess.run(
        [sys.executable, "-m", "tailshift", "--plugin", "plugin.py", "list", "heads"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
