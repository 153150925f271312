"""JSON and tensor files: any change is noticed."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open

from tailshift.predictions import Predictions
from tailshift.storage import (
    EditedFileError,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from tailshift.workers import Preempted, exit_on_signals


def test_write_json__names_what_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    content = {
        "mean": [0.5, 1e-17],
        "names": ["ä", "\udcff"],
        "nested": {"b": 1, "a": 2},
    }
    write_json(path, content)
    assert read_json(path) == content
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text), indent=7))  # another layout
    assert read_json(path) == content
    path.write_text(text.replace("0.5", "0.6"))
    with pytest.raises(EditedFileError) as error:
        read_json(path)
    assert str(error.value) == (
        f"{path} was edited after it was written: `mean` does not fit the checksum. "
        "Undo the edit, or train the run again with --force."
    )


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"added": 1}, "`added` does"),
        ({"a": 2, "b": 3}, "`a`, `b` do"),
        ({"checksum": 3}, "`a`, `b`, `checksum` do"),
        ({"a": None}, "`a` does"),
    ],
)
def test_read_json__any_edit(change: Any, keys: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": 1, "b": [2]})
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(EditedFileError) as error:
        read_json(path)
    assert f": {keys} not fit" in str(error.value)


@pytest.mark.parametrize("stored", [None, "gone"])
def test_read_json__whose_checksum_is_gone(stored: str | None, tmp_path: Path) -> None:
    """Whatever was edited with it: it is not taken for a file of version 0.1."""
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    content = json.loads(path.read_text())
    assert content.keys() == {"a", "format", "checksum"}
    content |= {"a": 2, "checksum": None}
    if stored == "gone":
        del content["checksum"]
    path.write_text(json.dumps(content))
    with pytest.raises(EditedFileError) as error:
        read_json(path)
    assert str(error.value) == (
        f"{path} was edited after it was written: its checksum is gone. Undo the edit, "
        "or train the run again with --force."
    )


def test_read_json__sealed_before_there_was_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    content = json.loads(path.read_text())
    del content["format"]
    path.write_text(json.dumps(content))
    assert read_json(path) == {"a": 1}
    path.write_text(json.dumps(content | {"a": 2}))
    with pytest.raises(EditedFileError):
        read_json(path)


def test_read_json__of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "run.json") == {"a": 1}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("read", [read_json, read_tensors, Predictions.load])
def test_read__only_regular_files(read: Callable[[Path], Any], tmp_path: Path) -> None:
    """A named pipe would be waited for without end."""
    path = tmp_path / "pipe.npz"
    os.mkfifo(path)
    with pytest.raises(OSError, match="pipe") as error:
        read(path)
    assert str(error.value) == f"{path} must be a regular file, but is a named pipe."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_read_tensors__a_signal_is_delivered_and_the_file_is_whole(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Safetensors makes an exception of its own of what a handler raises."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": torch.ones(2)}, {})
    found = []

    def slow(*arguments: Any, **settings: Any) -> Any:
        try:
            os.kill(os.getpid(), number)
            time.sleep(0.05)
        except BaseException as error:
            raise SafetensorError(f"Error: {error!r}") from None
        found.append(True)
        return safe_open(*arguments, **settings)

    monkeypatch.setattr("tailshift.storage.safe_open", slow)
    handlers = {n: signal.getsignal(n) for n in signal.valid_signals()}
    with exit_on_signals(), pytest.raises((KeyboardInterrupt, Preempted)):
        read_tensors(path)
    assert found == [True]
    assert {n: signal.getsignal(n) for n in signal.valid_signals()} == handlers
