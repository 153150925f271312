"""JSON and tensor files with a checksum."""

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from tailshift.files import atomic_write, check_regular, read_text
from tailshift.workers import hold_signals

if TYPE_CHECKING:
    from torch import Tensor


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
            with hold_signals():
                save_file(own, temporary, metadata=sealed)
        except SafetensorError as error:
            raise _as_os_error(error, path) from None


def read_tensors(path: Path) -> TensorFile:
    """Return what a safetensors file holds, after checking its checksum if it has one.

    Raises:
        DamagedFileError: If it is no whole safetensors file, or was changed.
    """
    check_regular(path)
    with hold_signals():
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
