"""Writing files so that a reader sees the old one or the new one, never a part."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success sync it and rename it.

    The file is left as it was if the block raises.

    Args:
        path: The file to write; its folder is made where it is missing.
        overwrite: Replace a file that exists; otherwise refuse.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "notes.txt"
        >>> with atomic_write(path) as temporary:
        ...     _ = temporary.write_text("all of it")
        >>> path.read_text()
        'all of it'
    """
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Name another file, or overwrite it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # a writer that makes the file anew may differ
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
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
