"""Read pickles of plain arrays and lists, and refuse everything else.

A pickle may name any function and have it called while it is read. The public CIFAR
files need three names of NumPy's and one codec; each is answered here by a method
that builds plain numbers and nothing else, and every other name is refused.
"""

import contextlib
import os
import pickle
import pickletools
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tailshift.data.list_files import shown

MOST_TUPLES = 10_000

_NUMBER_KINDS = "biuf"  # dtype.kind: booleans, integers, floats; never objects


def load_plain_pickle(path: Path) -> Any:
    """Return what the file holds: dicts, lists, strings, numbers and NumPy arrays.

    Strings of Python 2 are read as Latin-1, as NumPy's arrays in them need.

    Args:
        path: The file. What it asks for is never imported or called.

    Raises:
        ValueError: If it holds anything else, or is no pickle.
    """
    with path.open("rb") as file:
        try:
            _check_opcodes(file)
            return _PlainUnpickler(file, path).load()
        except _RefusalError:
            raise
        except Exception as error:  # a broken pickle may raise almost anything
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"`{path}` must be a pickle file, but cannot be read "
                f"({type(error).__name__}: {reason}). Fetch it again."
            ) from error


def _check_opcodes(file: IO[bytes]) -> None:
    """Refuse what would exhaust memory or stack before it could be refused.

    Python makes room up to the highest memo index, and a hash goes down as deep as
    tuples are nested.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    highest = num_tuples = 0
    # What is no opcode here is none for the unpickler either, which says so.
    with contextlib.suppress(Exception):
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name in ("PUT", "LONG_BINPUT"):
                highest = max(highest, int(argument or 0))
            num_tuples += opcode.name.startswith(("TUPLE", "FROZENSET"))
    file.seek(0)
    if num_tuples > MOST_TUPLES:
        raise ValueError(f"{num_tuples} tuples, but arrays and lists need few")
    if highest > size:
        raise ValueError(f"a memo of {highest} entries in a file of {size} bytes")


class _RefusalError(ValueError):
    """The file asks for something that plain data does not need."""


class _PlainDType:
    """Stands for a pickled dtype: its letter and, once set, its byte order."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        byte_order = state[1]
        self.dtype = self.dtype.newbyteorder(byte_order)


class _PlainArray(np.ndarray[Any, Any]):
    """An array whose pickled state is checked before NumPy takes it."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, fortran, raw = state
        raw = _as_bytes(raw)
        sizes = _checked_shape(shape, kind, raw)
        plain = (version, sizes, kind.dtype, bool(fortran), raw)
        super().__setstate__(plain)  # type: ignore[arg-type]  # NumPy takes only bool


class _PlainUnpickler(pickle.Unpickler):
    """Answers the few names a plain array needs with its own methods.

    They are bound methods, whose code and defaults a pickle cannot change.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, encoding="latin-1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        answers: dict[tuple[str, str], Callable[..., Any] | str] = {
            ("numpy", "ndarray"): "ndarray",  # only ever passed to _reconstruct
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
        }
        for core in ("numpy.core", "numpy._core"):  # NumPy 1 and 2
            answers[f"{core}.multiarray", "_reconstruct"] = self._reconstruct
            answers[f"{core}.numeric", "_frombuffer"] = self._frombuffer
        if (module, name) not in answers:
            raise _RefusalError(
                f"`{self._path}` must hold only arrays, lists, strings, numbers and "
                f"dicts, but asks for {shown(f'{module}.{name}')}. Fetch the file "
                "again from a source you trust."
            )
        return answers[module, name]

    def _dtype(self, letter: str, *_: object) -> _PlainDType:
        dtype = np.dtype(letter)
        if dtype.kind not in _NUMBER_KINDS:
            raise _RefusalError(
                f"`{self._path}` must hold arrays of numbers, but one is of dtype "
                f"{dtype}. Fetch the file again from a source you trust."
            )
        return _PlainDType(dtype)

    def _reconstruct(self, *_: object) -> _PlainArray:
        return _PlainArray(0, dtype=np.uint8)  # empty, until its state is set

    def _frombuffer(
        self, buffer: Any, kind: _PlainDType, shape: tuple[int, ...], order: str
    ) -> NDArray[Any]:
        raw = _as_bytes(buffer)
        flat = np.frombuffer(raw, dtype=kind.dtype)
        return flat.reshape(
            _checked_shape(shape, kind, raw), order="F" if order == "F" else "C"
        )

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise ValueError(f"bytes must be encoded as latin1, but are {encoding!r}")
        return text.encode("latin-1")


def _as_bytes(raw: object) -> bytes:
    if isinstance(raw, str):  # a string of Python 2
        return raw.encode("latin-1")
    if isinstance(raw, bytes | bytearray):
        return bytes(raw)
    raise TypeError(f"an array must be given as bytes, but is {type(raw).__name__}")


def _checked_shape(
    shape: tuple[int, ...], kind: _PlainDType, raw: bytes
) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in shape)
    if min(sizes, default=0) < 0 or prod(sizes) * kind.dtype.itemsize != len(raw):
        raise ValueError(
            f"{len(raw)} bytes do not fill an array of shape {sizes} and dtype "
            f"{kind.dtype}"
        )
    return sizes
