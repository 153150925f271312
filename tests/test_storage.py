"""Files appear whole or not at all."""

import errno
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open

import tailshift as ts
from tailshift.data.features import write_bank
from tailshift.evaluation.results import keep_logits
from tailshift.predictions import Predictions
from tailshift.storage import (
    EditedFileError,
    atomic_write,
    holding_signals,
    read_json,
    read_tensors,
    remove_leftovers,
    write_json,
    write_tensors,
)
from tailshift.training.interrupt import Preempted, exit_on_termination


def test_atomic_write__makes_the_file_and_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "ünïcode name.txt"
    with atomic_write(path) as temporary:
        assert temporary.parent.parent == path.parent
        assert not path.exists()
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_atomic_write__keeps_the_old_file_if_the_block_raises(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write__replaces_by_default(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for text in ("old", "new"):
        with atomic_write(path) as temporary:
            temporary.write_text(text)
    assert path.read_text() == "new"


def test_atomic_write__gives_the_usual_permissions(tmp_path: Path) -> None:
    """Also where the writer made the file anew with permissions of its own."""
    usual, path = tmp_path / "usual", tmp_path / "written"
    usual.touch()
    with atomic_write(path) as temporary:
        temporary.unlink()
        temporary.touch(mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_atomic_write__relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with atomic_write(Path("notes.txt")) as temporary:
        temporary.write_text("all")
    assert (tmp_path / "notes.txt").read_text() == "all"


def test_atomic_write__refuses_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(FileExistsError) as error, atomic_write(path, overwrite=False):
        pytest.fail("the block must not run")
    assert str(error.value) == f"{path} exists. Name another file, or overwrite it."
    assert path.read_text() == "old"


def test_atomic_write__keeps_what_it_replaces(tmp_path: Path) -> None:
    path, before = tmp_path / "notes.txt", tmp_path / "before.txt"
    for text in ("first", "second", "third"):
        with atomic_write(path, keep=before) as temporary:
            temporary.write_text(text)
    assert (before.read_text(), path.read_text()) == ("second", "third")
    assert sorted(tmp_path.iterdir()) == [before, path]


def test_atomic_write__refuses_what_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"

    def write() -> None:
        with atomic_write(path, overwrite=False) as temporary:
            temporary.write_text("mine")
            path.write_text("another's")

    with pytest.raises(FileExistsError):
        write()
    assert path.read_text() == "another's"
    assert list(tmp_path.iterdir()) == [path]


NAMES = (
    ".hidden",
    ".a.tmp",
    ".tmpAb3dEf",
    f".a.json.{'0f' * 16}.tmp",
    ".tailshift-notes",
)


def test_remove_leftovers__takes_only_what_we_made(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in NAMES]
    for path in kept:
        path.touch()
    left = tmp_path / "in" / f".tailshift-{'0f' * 16}.tmp"
    left.mkdir(parents=True)
    (left / "half.json").touch()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "in"])
    assert list((tmp_path / "in").iterdir()) == []


def _write_and_be_killed(path: Path) -> None:
    child = os.fork()
    if child == 0:
        with atomic_write(path) as temporary:
            temporary.write_text("half of it")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_atomic_write__removes_what_a_killed_writer_of_the_file_left(
    tmp_path: Path,
) -> None:
    """But neither what one that lives is writing, nor what is of another file."""
    path = tmp_path / "report.html"
    for name in (path, tmp_path / "other.html"):
        _write_and_be_killed(name)
    assert len(list(tmp_path.iterdir())) == 2
    with atomic_write(path) as live:
        with atomic_write(path) as temporary:
            temporary.write_text("all of it")
        left = [*tmp_path.glob(".tailshift-*/*")]
        assert sorted(file.name for file in left) == ["other.html", "report.html"]
        live.write_text("again")
    assert path.read_text() == "again"


def test_atomic_write__names_the_file_that_there_is_no_room_for(tmp_path: Path) -> None:
    path = tmp_path / "report.html"

    def write() -> None:
        with atomic_write(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="space") as error:
        write()
    assert str(error.value) == f"{path} cannot be written (No space left on device)."
    assert error.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


KEPT_RUN = Path(__file__).parent / "data" / "kept" / "run_v0_1"
MAKERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a run": (
        lambda folder: ts.train(ts.load_recipe("digits_lt"), output=folder),
        "output",
    ),
    "kept logits": (lambda folder: keep_logits(ts.load(KEPT_RUN), folder), "logits"),
    "a bank": (lambda folder: write_bank(folder, {}, {}), "output"),
    "a file": (lambda folder: write_json(folder / "a.json", {}), "output"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("name", MAKERS)
def test_make_folder__where_there_can_be_none(name: str) -> None:
    make, argument = MAKERS[name]
    with pytest.raises(FileNotFoundError) as error:
        make(Path("/proc/x"))
    assert str(error.value) == (
        f"`{argument}` must lie in a folder that can be made, but /proc/x cannot be "
        "made (No such file or directory). Name another."
    )


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
    with exit_on_termination(), pytest.raises((KeyboardInterrupt, Preempted)):
        read_tensors(path)
    assert found == [True]
    assert {n: signal.getsignal(n) for n in signal.valid_signals()} == handlers


def test_holding_signals__delivers_each_that_came() -> None:
    came: list[int] = []
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(n, lambda n, frame: came.append(n)) for n in numbers]
    try:
        with holding_signals():
            for number in numbers:
                signal.raise_signal(number)
            assert came == []
        assert sorted(came) == sorted(numbers)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
