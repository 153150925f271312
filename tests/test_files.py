"""Files appear whole or not at all."""

import stat
from pathlib import Path

import pytest

from tailshift.files import atomic_write


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
