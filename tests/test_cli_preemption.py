"""On SIGTERM the command saves, and its exit code tells a scheduler to requeue it."""

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import tailshift as ts
from tailshift.training.recorder import TrainingProgress

Command = Callable[..., Any]


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
    assert not ts.load("run").is_finished
    result = tailshift("train", "--resume", "--output", "run", "--detect-anomaly")
    assert result.code == 0
    assert ts.load("run").is_finished
    assert not ts.load("run").config.train.detect_anomaly  # as it was begun


def test_train__preempted_before_training(
    tailshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["tailshift.training.train"]  # the name is the function's too
    monkeypatch.setattr(module, "check_splits", _terminate)
    result = tailshift("train", "digits_lt", "--output", "run")
    assert (result.code, result.err) == (75, "")
