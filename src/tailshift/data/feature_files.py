"""The files of a feature cache: safetensors that are mapped into memory."""

import errno
import json
import os
import struct
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.files import check_regular, naming_file


def read_only_tensor(array: NDArray[Any]) -> Tensor:
    """Return an array that is only read as a tensor of the same memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*not writable", category=UserWarning
        )
        return torch.from_numpy(array)


def first_not_finite(features: NDArray[Any]) -> int | None:
    """Return the first sample of features (views, N, d) with a NaN or infinity."""
    for view in features:
        for start in range(0, len(view), 4096):
            is_finite = np.isfinite(view[start : start + 4096]).all(axis=1)
            if not is_finite.all():
                return start + int(is_finite.argmin())
    return None


def split_path(folder: Path, name: str) -> Path:
    """Return the file of a split."""
    return folder / f"{name}.safetensors"


_CODES = {"float16": "F16", "float32": "F32", "int32": "I32"}
"""How safetensors names types."""


def create_split(
    path: Path, shape: tuple[int, int, int], dtype: str = "float32"
) -> dict[str, NDArray[Any]]:
    """Make a safetensors file of a split, and return its arrays to be filled in place.

    Args:
        path: File to make; it is replaced.
        shape: Views, samples and features.
        dtype: Type of the features.
    """
    _, samples, _ = shape
    header, end = {}, 0
    for name, kind, dims in (
        ("features", dtype, shape),
        ("labels", "int32", (samples,)),
    ):
        start, end = end, end + int(np.prod(dims)) * np.dtype(kind).itemsize
        header[name] = {
            "dtype": _CODES[kind],
            "shape": list(dims),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligned, so that it can be mapped
    with path.open("wb") as file:
        try:
            with naming_file(path):
                file.write(struct.pack("<Q", len(text)) + text)
                file.truncate(8 + len(text) + end)
                _reserve(file.fileno(), 8 + len(text) + end)
        except OSError:
            path.unlink()  # it may hold the room that there was
            raise
    return map_split(path, shape, mode="r+")


def _reserve(descriptor: int, size: int) -> None:
    """Take the room that a file needs from the disk, if the file system can.

    Otherwise a disk that is full ends the process when a mapped page is filled.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def map_split(
    path: Path, shape: tuple[int, int, int], mode: Literal["r", "r+"] = "r"
) -> dict[str, NDArray[Any]]:
    """Return a split's features, (views, N, d), and labels, (N,), mapped into memory.

    Args:
        path: File that `create_split` made.
        shape: What the features must have.
        mode: ``"r+"`` to fill them in; otherwise they cannot be written to, so that
            the system reads them page by page and a bank may be larger than memory.
    """
    if not path.is_file():
        raise FileNotFoundError(f"the feature cache {path.parent} has no {path.name}.")
    check_regular(path)
    damaged = ValueError(
        f"{path} is damaged: it is cut short, or no features of shape {shape}. Make it "
        "again with `tailshift features --force`."
    )
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 4096)))
        kinds = {code: kind for kind, code in _CODES.items()}
        arrays: dict[str, NDArray[Any]] = {}
        for name, about in header.items():
            dims, (start, end) = tuple(about["shape"]), about["data_offsets"]
            kind = np.dtype(kinds[about["dtype"]])
            is_there = 8 + length + end <= path.stat().st_size  # or r+ would add zeros
            if end - start != int(np.prod(dims)) * kind.itemsize or not is_there:
                raise damaged
            arrays[name] = np.memmap(path, kind, mode, 8 + length + start, dims)
    except (ValueError, LookupError, TypeError, ArithmeticError, struct.error):
        raise damaged from None
    except (AttributeError, RecursionError):  # a header that is no object, or is deep
        raise damaged from None
    if arrays.keys() != {"features", "labels"} or arrays["features"].shape != shape:
        raise damaged
    return arrays


def split_checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the CRC-32 of a split's features and labels."""
    total = 0
    for name in ("features", "labels"):
        flat = arrays[name].reshape(-1).view(np.uint8)
        for start in range(0, len(flat), 2**24):
            total = zlib.crc32(flat[start : start + 2**24].data, total)
    return f"{total:08x}"
