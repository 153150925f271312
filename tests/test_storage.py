"""Files appear whole or not at all."""

import stat
from pathlib import Path

import pytest

from tailshift.storage import atomic_write, remove_leftovers


def test_atomic_write__makes_the_file_and_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "ünïcode name.txt"
    with atomic_write(path) as temporary:
        assert temporary.parent == path.parent
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


def test_remove_leftovers__takes_only_temporary_files(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in (".hidden", ".a.tmp", "b.tmp", ".tmp_folder")]
    left = [tmp_path / f".a.json.{'0f' * 16}.tmp", tmp_path / "in" / ".tmpAb3dEf"]
    (tmp_path / "in").mkdir()
    for path in (*kept, *left):
        path.touch()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "in"])
    assert list((tmp_path / "in").iterdir()) == []
