"""Predictions on disk: one safetensors file, or an .npz archive made elsewhere."""

import json
import os
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tailshift.registry import did_you_mean

FORMAT_VERSION = "1"


def write_safetensors(
    path: Path, tensors: dict[str, Tensor], class_names: Sequence[str], overwrite: bool
) -> None:
    """Write the tensors and the names as one file, whole or not at all."""
    check_destination(path, overwrite)
    metadata = {
        "tailshift_predictions": FORMAT_VERSION,
        "class_names": json.dumps(class_names),
    }
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # save_file's own would be private
        save_file(tensors, temporary, metadata=metadata)
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        check_destination(path, overwrite)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_entries(fields: Mapping[str, Any], known: list[str]) -> None:
    """Refuse a file with unknown entries, or without scores or labels."""
    for key in fields:
        if key not in known:
            hint = did_you_mean(key, known) or ";"
            raise ValueError(f"unknown entry {key!r}{hint} Known: {', '.join(known)}.")
    if "logits" in fields and "probs" in fields:
        raise ValueError("it holds both `logits` and `probs`; keep one of them.")
    scores = " or ".join(f"`{key}`" for key in ("logits", "probs") if key in known)
    if not {"logits", "probs"} & set(fields):
        raise ValueError(f"it does not hold {scores}.")
    if "labels" not in fields:
        raise ValueError("it does not hold `labels`.")


def check_destination(path: Path, overwrite: bool) -> None:
    """Refuse a path that ends in .npz, has no folder, or exists unasked."""
    if path.suffix.lower() == ".npz":
        raise ValueError(
            f"Predictions are written as safetensors, but {path} ends in .npz."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} to write {path} in.")
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{path} exists and is not overwritten. Give overwrite=True to replace it."
        )


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the entries of a safetensors file, memory-mapped, and its class names."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            keys: list[str] = list(file.keys())
            fields: dict[str, Any] = {key: file.get_tensor(key) for key in keys}
    except SafetensorError:
        raise ValueError(f"{path} is no safetensors file or is cut short.") from None
    version = metadata.get("tailshift_predictions", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} is of format version {version}, "
            f"but this tailshift reads version {FORMAT_VERSION}."
        )
    fields["class_names"] = _parse_names(path, metadata.get("class_names", "[]"))
    return fields


def _parse_names(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except json.JSONDecodeError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} has class names that are not a JSON list of strings.")
    return names


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an archive; pickled ones are refused, not read."""
    # TypeError: a lone array, which np.load returns bare.
    unreadable = (ValueError, TypeError, EOFError, BadZipFile, zlib.error)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except unreadable as error:
        if "Object arrays" in str(error):
            raise ValueError(
                f"{path} holds pickled objects, which are not read; "
                "save plain arrays of numbers, and class names as strings."
            ) from None
        raise ValueError(f"{path} is no .npz archive or is cut short.") from None
