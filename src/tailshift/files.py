"""Atomic file writes, and checks of files before they are read."""

import os
import re
import shutil
import stat
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MARK = ".tailshift-"  # of the folders that a file is in until it is whole


@contextmanager
def atomic_write(
    path: Path, *, overwrite: bool = True, keep: Path | None = None
) -> Iterator[Path]:
    """Yield a temporary path for ``path``; on success sync it and move it there.

    The file is left as it was if the block raises. A process that is killed leaves the
    old file or the new one, and perhaps a temporary folder beside it, which the next
    writer of the file removes, as `remove_leftovers` does.

    Args:
        path: The file to write; its folder is made if it is missing.
        overwrite: Replace a file that exists; otherwise refuse.
        keep: Path to keep the replaced file at, in place of what is there.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "notes.txt"
        >>> with atomic_write(path) as temporary:
        ...     _ = temporary.write_text("all of it")
        >>> path.read_text()
        'all of it'
    """
    _refuse_existing(path, overwrite)
    make_folder(path.parent)
    with naming_file(path):
        _remove_killed(path)
        with _own_folder(path.parent) as folder:
            temporary = folder / path.name
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode  # a writer that makes it anew may differ
            yield temporary
            temporary.chmod(mode)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            _refuse_existing(path, overwrite)  # it may have come meanwhile
            if keep is not None and path.exists():
                _keep(path, keep, folder)
            temporary.replace(path)
            _sync_folder(path.parent)


def check_file_name(name: str, argument: str) -> str:
    """Return a name that may become that of a file or folder, and raise otherwise.

    Names also come out of other people's files, where one could lead anywhere.

    Args:
        name: The name, or the beginning of one.
        argument: What it is called in the error.

    Example:
        >>> check_file_name("../../x", "recipe")
        Traceback (most recent call last):
        ...
        ValueError: `recipe` must be a file name, without slashes, colons, control \
characters or a dot in front, but is '../../x'. Rename it.
    """
    if not re.fullmatch(r"(?!\.)[^/\\:\x00-\x1f\x7f-\x9f]+", name):
        raise ValueError(
            f"`{argument}` must be a file name, without slashes, colons, control "
            f"characters or a dot in front, but is {name!r}. Rename it."
        )
    return name


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of writers that were killed, below a folder.

    Call it only while nothing else writes there.
    """
    for path in folder.rglob(f"{_MARK}*"):
        if is_leftover(path):
            shutil.rmtree(path, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """Return whether a path is named like a temporary folder of `atomic_write`."""
    return (
        re.fullmatch(rf"{re.escape(_MARK)}[0-9a-f]{{32}}\.tmp", path.name) is not None
    )


@contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder, locked for as long as this process lives."""
    folder = parent / f"{_MARK}{uuid.uuid4().hex}.tmp"
    folder.mkdir()
    lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_killed(path: Path) -> None:
    """Remove what writers of this file left that are no longer there."""
    for folder in filter(is_leftover, path.parent.glob(f"{_MARK}*")):
        # A folder is locked before the file is in it, so that no live one is met here.
        lock = _lock(folder) if (folder / path.name).exists() else None
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Return a folder's descriptor, locked; None if another has it, or no locks."""
    if os.name != "posix":
        return None
    import fcntl  # not on Windows

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in a fault that names none, or a temporary one."""
    try:
        yield
    except OSError as error:
        # Without the system's text it is a sentence of ours.
        if error.strerror is None or _MARK not in str(error.filename or _MARK):
            raise
        text = f"{path} cannot be written ({error.strerror})."
        raise _told(error, text) from error


def make_folder(folder: Path, argument: str = "output") -> None:
    """Make a folder and those above it, unless it is there.

    Args:
        folder: The folder.
        argument: What was to lie in it, as it is called in the error.

    Example:
        >>> make_folder(Path("/dev/null/x"))
        Traceback (most recent call last):
        ...
        NotADirectoryError: `output` must lie in a folder that can be made, but \
/dev/null/x cannot be made (Not a directory). Name another.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(f"{folder} is a file, but must be a folder.") from None
    except OSError as error:
        text = (
            f"`{argument}` must lie in a folder that can be made, but {folder} cannot "
            f"be made ({error.strerror}). Name another."
        )
        raise _told(error, text) from error


def _told(error: OSError, text: str) -> OSError:
    """Return a fault of the system, of the same kind, in a sentence."""
    told = type(error)(text)
    told.errno = error.errno
    return told


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Name another file, or overwrite it.")


def _keep(path: Path, other: Path, folder: Path) -> None:
    """Give a file a second name, so that it is there at every moment."""
    try:
        os.link(path, folder / "kept")
    except OSError:  # a file system without links: for a moment only `other` is there
        path.replace(other)
    else:
        (folder / "kept").replace(other)


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, if folders can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that exists, unless it is to be replaced, and what is no file."""
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(f"{path.parent} is a file, but must be a folder.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, but must be a file.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists. Replace it (--force) or name another.")


_FILE_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path) -> None:
    """Refuse what is no regular file: a pipe would be waited for, a device not end."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        came = _FILE_KINDS.get(kind, "something else")
        raise OSError(f"{path} must be a regular file, but is {came}.")


def free_memory() -> int:
    """Return how many bytes can be taken, or all that the machine has if unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2**33


def check_unpacked(path: Path, remedy: str) -> None:
    """Refuse an archive that would unpack to more than half of the free memory.

    Args:
        path: A zip archive, as ``.npz`` files are; who reads another says what it is.
        remedy: How to fix it, a sentence.
    """
    size, most = 0, free_memory() // 2
    with suppress(Exception), zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > most:
        raise ValueError(
            f"{path} unpacks to {size / 1e9:.1f} GB, but at most {most / 1e9:.1f} GB "
            f"are read, half of the free memory. {remedy}"
        )


MOST_JSON = 2**27
"""The largest JSON file that is read, in bytes."""


def read_text(path: Path, most: int = MOST_JSON) -> str:
    """Return what a UTF-8 text file holds, without a byte order mark.

    Args:
        path: The file.
        most: The largest size that is read, in bytes.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file `{path}`.")
    check_regular(path)
    size = path.stat().st_size
    if size > most:
        raise ValueError(
            f"`{path}` must not be larger than {most >> 20} MB, but has "
            f"{size >> 20} MB."
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`{path}` must be text in UTF-8, but byte {error.start} is not. Save it "
            "as UTF-8."
        ) from None
