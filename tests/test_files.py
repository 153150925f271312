"""Atomic writes: a file appears whole or not at all."""

import errno
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailshift as ts
from tailshift.data.features import write_bank
from tailshift.evaluation.results import keep_logits
from tailshift.files import atomic_write, remove_leftovers
from tailshift.storage import write_json


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
    "kept logits": (
        lambda folder: keep_logits(ts.load_run(KEPT_RUN), folder),
        "logits",
    ),
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
