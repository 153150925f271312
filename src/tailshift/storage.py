"""Files that a reader sees whole or not at all, and tensors sealed with a checksum."""

import json
import os
import re
import shutil
import signal
import stat
import threading
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from torch import Tensor

MARK = ".tailshift-"  # of the folders that a file is in until it is whole


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
    for path in folder.rglob(f"{MARK}*"):
        if is_leftover(path):
            shutil.rmtree(path, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """Return whether a path is named like a temporary folder of `atomic_write`."""
    return re.fullmatch(rf"{re.escape(MARK)}[0-9a-f]{{32}}\.tmp", path.name) is not None


@contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder, locked for as long as this process lives."""
    folder = parent / f"{MARK}{uuid.uuid4().hex}.tmp"
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
    for folder in filter(is_leftover, path.parent.glob(f"{MARK}*")):
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
        if error.strerror is None or MARK not in str(error.filename or MARK):
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


_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return text that a terminal shows and UTF-8 holds.

    Control characters and bytes of names that are not UTF-8 are spelt out.

    Example:
        >>> printable("kea\x1b[31m"), printable(os.fsdecode(b"caf\xe9"))
        ('kea\\x1b[31m', 'caf\\udce9')
    """
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def csv_cell(text: str) -> str:
    r"""Return text that a spreadsheet shows and does not compute.

    Some of them pass over white space in front of a formula.

    Example:
        >>> csv_cell("=1+1"), csv_cell("-0.5"), csv_cell("kea"), csv_cell("\t=1+1")
        ("'=1+1", '-0.5', 'kea', "'\t=1+1")
    """
    cell = printable(text)
    with suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\n")) else cell


def cut(text: str, most: int = 200) -> str:
    """Return the beginning of a text, for messages.

    Example:
        >>> cut("abcdef", most=3)
        'abc…'
    """
    return text if len(text) <= most else f"{text[:most]}…"


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


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block, with exit codes 130 and 75.

    Ctrl-C stays ignored if it is, as in a job in the background.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if number == signal.SIGINT:
            end_if_importing(130, frame)
            raise KeyboardInterrupt
        end_if_importing(75, frame)
        raise SystemExit(75)

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGTERM]
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                numbers.append(signal.SIGINT)
            for number in numbers:
                stack.callback(signal.signal, number, signal.signal(number, end))
        yield


def end_if_importing(code: int, frame: FrameType | None) -> None:
    """End the process at once if a signal has come while a module was imported.

    Modules may swallow what is raised in them, or fail later because they are half
    there; and nothing is open yet that could be lost.

    Args:
        code: The exit code.
        frame: What ran when the signal came.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(code)
        frame = frame.f_back


@contextmanager
def holding_signals() -> Iterator[None]:
    """Keep the signals that come while the block runs, and deliver them after it.

    Otherwise a handler's exception may come up inside a reader written in another
    language, which makes one of its own of it: the signal is lost, and the file looks
    damaged.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)

    def deliver() -> None:
        if came:
            number = came.pop()
            try:
                signal.raise_signal(number)
            finally:
                deliver()

    with ExitStack() as stack:
        stack.callback(deliver)  # the last: all handlers are back by then
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                stack.callback(signal.signal, number, handler)
                signal.signal(number, hold)
        yield


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


class EditedFileError(ValueError):
    """A file that was changed by hand after it was written.

    Args:
        path: The file.
        keys: The keys whose values differ; none if the checksum itself is gone.
        remedy: How to fix it, a sentence.
    """

    def __init__(self, path: Path, keys: list[str], remedy: str) -> None:
        do = "do" if len(keys) > 1 else "does"
        names = ", ".join(f"`{key[:40]}`" for key in keys[:8])
        what = f"{names} {do} not fit the checksum" if keys else "its checksum is gone"
        super().__init__(f"{path} was edited after it was written: {what}. {remedy}")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as JSON, a checksum a key beside it, whole or not at all.

    A mark says that there is a checksum: without it a file from which the checksum was
    removed would look like one of version 0.1, which wrote none.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "run.json"
        >>> write_json(path, {"mean": [0.5]})
        >>> read_json(path)
        {'mean': [0.5]}
    """
    plain = json.loads(json.dumps(content))  # as it is read: lists, keys of text
    sealed = {**plain, FORMAT: SEALED, CHECKSUM: _seals(plain)}
    with atomic_write(path) as temporary:
        temporary.write_text(json_text(sealed, indent=2) + "\n", encoding="utf-8")


def json_text(content: Any, indent: int | None = None) -> str:
    r"""Return JSON that people can read, and that UTF-8 can hold.

    Example:
        >>> json_text("caf\u00e9"), json_text("caf\udce9")
        ('"café"', '"caf\\udce9"')
    """
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    is_text = not re.search("[\ud800-\udfff]", text)  # else a name is not UTF-8
    return text if is_text else json.dumps(content, indent=indent)


TRAIN_AGAIN = "Undo the edit, or train the run again with --force."


def read_json(path: Path, *, remedy: str = TRAIN_AGAIN) -> dict[str, Any]:
    """Return the mapping in a JSON file, after checking its checksum if it has one.

    Args:
        path: The file.
        remedy: How to fix a file that was edited, a sentence.

    Raises:
        EditedFileError: If a value was changed since `write_json` wrote it, or the
            checksum is gone.
        ValueError: If it is not a JSON object.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
        plain = dict(content) if isinstance(content, dict) else {}
        mark, stored = plain.pop(FORMAT, None), plain.pop(CHECKSUM, None)
        seals = _seals(plain)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, but does not.")
    if stored is not None:
        _check_seals(path, seals, stored, remedy)
    elif mark is not None:  # files of version 0.1 have neither
        raise EditedFileError(path, [], remedy)
    return plain


def _check_seals(path: Path, seals: dict[str, str], stored: Any, remedy: str) -> None:
    asked = stored if isinstance(stored, dict) else {CHECKSUM: ""}
    keys = [key for key in {**seals, **asked} if seals.get(key) != asked.get(key)]
    if keys:
        raise EditedFileError(path, keys, remedy)


def _seals(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the CRC-32 of each value, whatever its layout in the file."""
    lines = {key: json.dumps(value, sort_keys=True) for key, value in content.items()}
    return {key: f"{zlib.crc32(line.encode()):08x}" for key, line in lines.items()}


CHECKSUM, NOTES = "checksum", "tailshift"
FORMAT, SEALED = "format", 2  # of JSON files that have a checksum


class TensorFile(NamedTuple):
    """What a file holds."""

    tensors: dict[str, "Tensor"]
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
    tensors: Mapping[str, "Tensor"],
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
        keep: Path to keep the replaced file at.

    Example:
        >>> import torch
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "weights.safetensors"
        >>> write_tensors(path, {"w": torch.ones(2)}, {"made_by": "hand"})
        >>> read_tensors(path).tensors
        {'w': tensor([1., 1.])}
    """
    from safetensors.torch import save_file  # PyTorch takes a while

    own = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    if len({value.untyped_storage().data_ptr() for value in own.values()}) < len(own):
        own = {key: value.clone() for key, value in own.items()}
    sealed = {**metadata, CHECKSUM: checksum(own, metadata)}
    with atomic_write(path, overwrite=overwrite, keep=keep) as temporary:
        try:
            with holding_signals():
                save_file(own, temporary, metadata=sealed)
        except SafetensorError as error:
            raise _as_os_error(error, path) from None


def read_tensors(path: Path) -> TensorFile:
    """Return what a safetensors file holds, after checking its checksum if it has one.

    Raises:
        DamagedFileError: If it is no whole safetensors file, or was changed.
    """
    check_regular(path)
    with holding_signals():
        tensors, metadata = _read_safetensors(path)
    stored = metadata.pop(CHECKSUM, None)
    if stored is not None and stored != checksum(tensors, metadata):
        raise DamagedFileError(path, "its checksum does not fit its content")
    return TensorFile(tensors, metadata, stored is not None)


def _read_safetensors(path: Path) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in list(file.keys())}
            return tensors, file.metadata() or {}
    except OSError:
        raise
    except Exception as error:  # a damaged file may raise almost anything
        raise DamagedFileError(path, str(error) or type(error).__name__) from None


def checksum(tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> str:
    """Return the CRC-32 of tensors and metadata, which tells any changed byte.

    Safetensors itself notices a file cut short, but not a flipped bit in a tensor.
    """
    total = 0
    for part in _parts(tensors, metadata):
        total = zlib.crc32(part, total)
    return f"{total:08x}"


def _parts(
    tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    import torch

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
    """Return safetensors' error for a failed write as the OSError that it was."""
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
