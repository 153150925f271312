"""Files that a reader sees whole or not at all, and tensors sealed with a checksum."""

import os
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


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
    if not re.fullmatch(r"(?!\.)[^/\\:\x00-\x1f\x7f]+", name):
        raise ValueError(
            f"`{argument}` must be a file name, without slashes, colons, control "
            f"characters or a dot in front, but is {name!r}. Rename it."
        )
    return name


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


CHECKSUM, NOTES = "checksum", "tailshift"


class TensorFile(NamedTuple):
    """What a file holds."""

    tensors: dict[str, Tensor]
    """Memory-mapped."""
    metadata: dict[str, str]
    is_sealed: bool
    """Whether the file has a checksum; one that does not fit is never returned."""


class DamagedFileError(ValueError):
    """A file that is cut short, changed or of another kind.

    Args:
        path: The file.
        reason: What is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = " ".join(reason.split())  # one line, whatever it was made of
        super().__init__(f"{path} is not a whole safetensors file ({self.reason}).")


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    overwrite: bool = True,
    keep: Path | None = None,
) -> None:
    """Write tensors and metadata with their checksum, whole or not at all.

    Args:
        path: The file to write.
        tensors: By name; they may share memory, and are then written twice.
        metadata: Text by name.
        overwrite: Replace a file that exists; otherwise refuse.
        keep: Where to keep the file that is replaced.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "weights.safetensors"
        >>> write_tensors(path, {"w": torch.ones(2)}, {"made_by": "hand"})
        >>> read_tensors(path).tensors
        {'w': tensor([1., 1.])}
    """
    own = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    if len({value.untyped_storage().data_ptr() for value in own.values()}) < len(own):
        own = {key: value.clone() for key, value in own.items()}
    sealed = {**metadata, CHECKSUM: checksum(own, metadata)}
    with atomic_write(path, overwrite=overwrite, keep=keep) as temporary:
        try:
            save_file(own, temporary, metadata=sealed)
        except SafetensorError as error:
            raise _as_os_error(error, path) from None


def read_tensors(path: Path) -> TensorFile:
    """Return what a safetensors file holds, if its checksum fits, where it has one.

    Raises:
        DamagedFileError: If it is no whole safetensors file, or was changed.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in list(file.keys())}
            metadata = file.metadata() or {}
    except OSError:
        raise
    except Exception as error:  # a damaged file may raise almost anything
        raise DamagedFileError(path, str(error) or type(error).__name__) from None
    stored = metadata.pop(CHECKSUM, None)
    if stored is not None and stored != checksum(tensors, metadata):
        raise DamagedFileError(path, "its checksum does not fit its content")
    return TensorFile(tensors, metadata, stored is not None)


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the CRC-32 of tensors and metadata, which tells any changed byte.

    Safetensors itself notices a file cut short, but not a flipped bit in a tensor.
    """
    total = 0
    for part in _parts(tensors, metadata):
        total = zlib.crc32(part, total)
    return f"{total:08x}"


def _parts(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    others = sorted(metadata.keys() - {NOTES, CHECKSUM})
    lines = [metadata.get(NOTES, ""), *(f"{key}={metadata[key]}" for key in others)]
    yield "\n".join(lines).encode(errors="surrogatepass")
    for key in sorted(tensors):
        value = tensors[key]
        header = f"{key} {value.dtype} {tuple(value.shape)}"
        yield header.encode(errors="surrogatepass")
        if value.numel():
            yield value.reshape(-1).view(torch.uint8).numpy().data


def _as_os_error(error: SafetensorError, path: Path) -> OSError:
    """Return safetensors' word for a failed write as what it was: an OSError."""
    number = re.search(r"os error (\d+)", str(error))
    if number is None:
        return OSError(f"{path} cannot be written ({error}).")
    code = int(number[1])
    return OSError(code, os.strerror(code), str(path))


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that exists, unless it is to be replaced, and what is no file."""
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(f"{path.parent} is a file, but must be a folder.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, but must be a file.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists. Replace it (--force) or name another.")
