"""NumPy and safetensors files of scores."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tailshift.checks import as_tensor
from tailshift.predictions import read_npz, read_safetensors
from tailshift.retarget.columns import check_distinct
from tailshift.retarget.scores import ScoreArray, ScoreKind, blank_rows
from tailshift.retarget.tables import Chunk, Table
from tailshift.storage import CHECKSUM, checksum, read_tensors

SCORE_NAMES: dict[str, ScoreKind | None] = {
    "logits": "logits",
    "probs": "probabilities",
    "probabilities": "probabilities",
    "log_probs": "log_probabilities",
    "scores": None,
}
LABELS = "labels"


class ArrayTable(Table):
    """An ``.npz``, ``.npy`` or safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            start = file.read(8)
        if start.startswith(b"\x93NUMPY"):
            self.format, self.entries = ".npy", {"scores": _read_npy(path)}
        elif start.startswith(b"PK"):
            self.format, self.entries = ".npz", read_npz(path)
        else:
            self.format, self.entries = "safetensors", read_safetensors(path)
        self.name = self._score_name()
        self.kind = SCORE_NAMES.get(self.name)
        scores = as_tensor(self.entries[self.name], self.name)
        if scores.ndim != 2 or not scores.is_floating_point() or not scores.numel():
            raise ValueError(
                f"{path} must hold scores of shape (N, C) in floating point, but "
                f"`{self.name}` has shape {tuple(scores.shape)} and {scores.dtype}."
            )
        self.scores = scores
        self.class_names = self._class_names()
        self.column_names = tuple(
            key for key in self.entries if self._is_column(key) and key != self.name
        )

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows."""
        for start in range(0, len(self.scores), self.rows_per_chunk):
            rows = slice(start, start + self.rows_per_chunk)
            columns = {
                key: [str(value) for value in np.asarray(self.entries[key][rows])]
                for key in self.column_names
            }
            yield Chunk(start, self.scores[rows].double().numpy(), columns)

    def write(self, path: Path, parts: Iterable[tuple[Chunk, ScoreArray]]) -> None:
        """Write the same entries with other scores, in the dtype they had."""
        found = self.scores.clone()
        for chunk, scores in parts:
            rows = found[chunk.start : chunk.start + len(scores)]
            kept = blank_rows(scores)
            new = torch.from_numpy(scores).to(found.dtype)
            rows[:] = torch.where(torch.from_numpy(kept)[:, None], rows, new)
        if self.format == ".npy":
            with path.open("wb") as file:
                np.save(file, found.numpy())
        elif self.format == ".npz":
            entries = {**self.entries, self.name: found.numpy()}
            with path.open("wb") as file:
                np.savez(file, **entries)
        else:
            self._write_safetensors(path, found)

    def _write_safetensors(self, path: Path, found: torch.Tensor) -> None:
        file = read_tensors(self.path)
        tensors = {**file.tensors, self.name: found}
        tensors = {key: value.contiguous() for key, value in tensors.items()}
        metadata = dict(file.metadata)
        if file.is_sealed:
            metadata[CHECKSUM] = checksum(tensors, metadata)
        save_file(tensors, path, metadata=metadata or None)

    def _score_name(self) -> str:
        known = [name for name in SCORE_NAMES if name in self.entries]
        arrays = [k for k, v in self.entries.items() if getattr(v, "ndim", 0) == 2]
        if len(known) == 1 or len(arrays) == 1:
            return known[0] if len(known) == 1 else arrays[0]
        raise ValueError(
            f"{self.path} must hold one array of scores named "
            f"{', '.join(SCORE_NAMES)}, but holds {', '.join(self.entries) or 'none'}."
        )

    def _class_names(self) -> tuple[str, ...]:
        names: Any = self.entries.get("class_names")
        C = self.scores.shape[1]
        if names is None or len(names) == 0:
            return tuple(str(c) for c in range(C))
        if len(names) != C:
            raise ValueError(
                f"{self.path} has {len(names)} `class_names` but {C} columns of scores."
            )
        names = [str(name) for name in names]
        check_distinct(names)
        return tuple(names)

    def _is_column(self, key: str) -> bool:
        value = self.entries[key]
        is_vector = getattr(value, "ndim", 0) == 1 and key != "class_names"
        return is_vector and len(value) == len(self.scores)


def _read_npy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, EOFError):
        raise ValueError(
            f"{path} is no .npy array of numbers or is cut short."
        ) from None
