"""Predictions on disk: one safetensors file, or an .npz archive made elsewhere."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tailshift.registry import did_you_mean
from tailshift.tensor_file import DamagedFileError, read_tensors, write_tensors

FORMAT_VERSION = "2"
UNSEALED_VERSION = "1"  # the same, before files had a checksum


def write_safetensors(
    path: Path, tensors: dict[str, Tensor], class_names: Sequence[str], overwrite: bool
) -> None:
    """Write the tensors, the names and a checksum, whole or not at all."""
    check_destination(path, overwrite)
    metadata = {
        "tailshift_predictions": FORMAT_VERSION,
        "class_names": json.dumps(class_names),
    }
    write_tensors(path, tensors, metadata, overwrite=overwrite)


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
    """Return the entries of a safetensors file, memory-mapped, and its class names.

    The checksum is compared, which a file made elsewhere need not have.
    """
    try:
        file = read_tensors(path)
    except DamagedFileError as error:
        reason = "was changed" if "checksum" in error.reason else "is cut short"
        raise ValueError(f"{path} is no safetensors file or {reason}.") from None
    version = file.metadata.get("tailshift_predictions", UNSEALED_VERSION)
    if version not in (UNSEALED_VERSION, FORMAT_VERSION):
        raise ValueError(
            f"{path} is of format version {version[:40]!r}, "
            f"but this tailshift reads version {FORMAT_VERSION}."
        )
    if version == FORMAT_VERSION and not file.is_sealed:
        raise ValueError(f"{path} was changed: its checksum is gone.")
    names = _parse_names(path, file.metadata.get("class_names", "[]"))
    return {**file.tensors, "class_names": names}


def _parse_names(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} has class names that are not a JSON list of strings.")
    return names


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an archive; pickled ones are refused, not read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except PermissionError:
        raise
    except Exception as error:  # a broken archive may raise almost anything
        if "Object arrays" in str(error):
            raise ValueError(
                f"{path} holds pickled objects, which are not read; "
                "save plain arrays of numbers, and class names as strings."
            ) from None
        raise ValueError(f"{path} is no .npz archive or is cut short.") from None
