"""Tensors and notes in one safetensors file, sealed with a checksum."""

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tailshift.files import atomic_write

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
