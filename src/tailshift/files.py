"""Writing files so that a reader sees the old one or the new one, never a part."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(
    path: Path, *, overwrite: bool = True, keep: Path | None = None
) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success sync it and rename it.

    The file is left as it was if the block raises. A process that is killed leaves the
    old file or the new one, and perhaps a temporary one: see `remove_leftovers`.

    Args:
        path: The file to write; its folder is made where it is missing.
        overwrite: Replace a file that exists; otherwise refuse.
        keep: Where to keep the file that is replaced, in place of what is there.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "notes.txt"
        >>> with atomic_write(path) as temporary:
        ...     _ = temporary.write_text("all of it")
        >>> path.read_text()
        'all of it'
    """
    _refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # a writer that makes the file anew may differ
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        _refuse_existing(path, overwrite)  # it may have come meanwhile
        if keep is not None and path.exists():
            _keep(path, keep)
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that were killed, below a folder.

    Call it only where nothing else writes.
    """
    for path in folder.rglob(".*"):
        if is_leftover(path):
            path.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Say whether a path is named like a temporary file of ours or of safetensors'."""
    names = r"\..+\.[0-9a-f]{32}\.tmp|\.tmp[0-9A-Za-z]{6}"
    return re.fullmatch(names, path.name) is not None


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Name another file, or overwrite it.")


def _keep(path: Path, other: Path) -> None:
    """Give a file a second name, so that it is there at every moment."""
    temporary = _temporary(other)
    try:
        os.link(path, temporary)
    except OSError:  # a file system without links: for a moment only `other` is there
        path.replace(other)
        return
    try:
        temporary.replace(other)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where folders can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
