"""Logits, labels and priors of a held-out set, checked, in memory and on disk."""

import json
import os
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tailshift.priors import VectorLike, as_prior, check_labels
from tailshift.registry import did_you_mean

ArrayLike: TypeAlias = Tensor | NDArray[Any]

FORMAT_VERSION = "1"
PROBS_TOLERANCE = 1e-3  # a row of 8142 half-precision probabilities stays within it
HALF_LIMIT = torch.finfo(torch.float16).max


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    r"""What a model answered on a held-out set, and what is needed to re-target it.

    Values are checked once, here, and kept on the CPU. Arrays are taken as well as
    tensors; logits wider than float32 are rounded to it.

    Attributes:
        logits: :math:`f`, float32 or float16, shape (N, C); −inf is allowed.
        labels: :math:`y`, int64, shape (N,).
        source_counts: :math:`n_y`, training images of each class, int64, shape (C,).
        trained_prior: The prior that the logits carry, float64, shape (C,).
        class_names: One name a class; ``"class 0"`` … where none is given.

    Example:
        >>> Predictions(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        Predictions(2 samples, 2 classes, torch.float32)
    """

    logits: Tensor
    labels: Tensor
    source_counts: Tensor | None = None
    trained_prior: Tensor | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        f = as_tensor(self.logits, "logits").cpu()
        if f.dtype in (torch.float64, torch.bfloat16):
            f = f.float()
        f = check_logits(f).contiguous()  # (N, C)
        num_classes = f.shape[1]
        y = check_sample_labels(self.labels, f).contiguous()  # (N,)
        n, p = self.source_counts, self.trained_prior
        if n is not None:
            n = check_counts(n, name="source_counts", num_classes=num_classes)
        if p is not None:
            p = as_tensor(p, "trained_prior")
            p = as_prior(p, name="trained_prior", num_classes=num_classes)
        names = _check_names(self.class_names, num_classes)
        for name, value in zip(_FIELDS, (f, y, n, p, names), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def from_probs(
        cls,
        probs: ArrayLike,
        labels: ArrayLike,
        source_counts: Tensor | None = None,
        trained_prior: Tensor | None = None,
        class_names: tuple[str, ...] = (),
    ) -> "Predictions":
        """Return predictions whose logits are log probabilities; log 0 is −inf.

        Example:
            >>> Predictions.from_probs(torch.eye(2), torch.tensor([0, 1])).logits
            tensor([[0., -inf],
                    [-inf, 0.]])
        """
        p = check_probs(probs)
        f = p.to(torch.promote_types(p.dtype, torch.float32)).log()
        y = as_tensor(labels, "labels")
        return cls(f, y, source_counts, trained_prior, class_names)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.logits.shape[1]

    def half(self) -> "Predictions":
        """Return a copy with half-precision logits, for a file half the size."""
        f = self.logits
        beyond = (f.abs() > HALF_LIMIT) & f.isfinite()
        if beyond.any():
            raise ValueError(
                f"`logits` must lie within ±{HALF_LIMIT:.0f} to be kept in half "
                f"precision, but {f[beyond][0].item():g} is among them."
            )
        return replace(self, logits=f.to(torch.float16, copy=True))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one safetensors file, whole or not at all.

        Args:
            path: Where to; the folder must exist.
            overwrite: Replace a file that is there, instead of raising.
        """
        path = Path(path)
        _check_destination(path, overwrite)
        tensors = {key: getattr(self, key) for key in _TENSORS}
        tensors = {key: value for key, value in tensors.items() if value is not None}
        metadata = {
            "tailshift_predictions": FORMAT_VERSION,
            "class_names": json.dumps(self.class_names),
        }
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode  # save_file's own would be private
            save_file(tensors, temporary, metadata=metadata)
            temporary.chmod(mode)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            _check_destination(path, overwrite)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Predictions":
        """Return the predictions in a file, their logits memory-mapped.

        An ``.npz`` archive is imported, without pickle: ``labels``, either ``logits``
        or ``probs``, and optionally ``source_counts``, ``trained_prior`` and
        ``class_names``. Any other file is read as safetensors with the same entries.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no predictions file {path}. "
                "Write one with Predictions.save(path)."
            )
        is_npz = path.suffix.lower() == ".npz"
        fields = _read_npz(path) if is_npz else _read_safetensors(path)
        try:
            _check_entries(fields, [*_FIELDS, "probs"] if is_npz else list(_FIELDS))
            return cls.from_probs(**fields) if "probs" in fields else cls(**fields)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be used: {error}") from error

    def __repr__(self) -> str:
        num_samples, num_classes = self.logits.shape
        return (
            f"Predictions({num_samples} samples, {num_classes} classes, "
            f"{self.logits.dtype})"
        )


_TENSORS = ("logits", "labels", "source_counts", "trained_prior")
_FIELDS = (*_TENSORS, "class_names")


def as_tensor(values: Any, name: str) -> Tensor:
    """Return an array, list or tensor as a tensor without gradient, sharing memory.

    An array that torch cannot share is copied: read-only, reversed, other byte order.
    """
    try:
        if isinstance(values, np.ndarray):
            values = np.require(values, values.dtype.newbyteorder("="), ["C", "W"])
        return torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):
        is_array = isinstance(values, np.ndarray)
        came = f"an array of {values.dtype}" if is_array else type(values).__name__
        raise TypeError(
            f"`{name}` must be a tensor, an array or a list of numbers, but is {came}."
        ) from None


def check_logits(logits: ArrayLike, *, name: str = "logits") -> Tensor:
    """Return ``logits`` as a tensor (N, C) without NaN, +inf or a row of only −inf.

    Example:
        >>> check_logits(torch.tensor([[0.0, 1.0], [0.0, torch.nan]]))
        Traceback (most recent call last):
        ...
        ValueError: `logits` must be finite or −inf, but row 1 (from 0) holds nan.
    """
    f = as_tensor(logits, name)
    if f.ndim != 2 or f.numel() == 0:
        raise ValueError(
            f"`{name}` must have shape (N, C) with at least one row and one class, "
            f"but has shape {tuple(f.shape)}."
        )
    if not f.is_floating_point():
        raise TypeError(f"`{name}` must be floating point, but is {f.dtype}.")
    largest = f.amax(dim=1)  # (N,): NaN where the row holds one; no copy of the logits
    if largest.isfinite().all():
        return f
    row = int((~largest.isfinite()).nonzero()[0])
    if largest[row] == -torch.inf:
        raise ValueError(
            f"`{name}` must not be −inf for every class, but row {row} (from 0) is."
        )
    raise ValueError(
        f"`{name}` must be finite or −inf, "
        f"but row {row} (from 0) holds {largest[row].item()}."
    )


def check_probs(probs: ArrayLike) -> Tensor:
    """Return ``probs`` as a tensor (N, C) with values in [0, 1] and rows of sum 1.

    Example:
        >>> check_probs(torch.tensor([[0.5, 0.6]]))
        Traceback (most recent call last):
        ...
        ValueError: Rows of `probs` must sum to 1, but row 0 (from 0) sums to 1.1000.
    """
    p = check_logits(probs, name="probs")
    smallest, largest = p.aminmax(dim=1)
    if smallest.min() < 0 or largest.max() > 1:
        outside = smallest.min() if smallest.min() < 0 else largest.max()
        raise ValueError(
            f"`probs` must lie in [0, 1], but holds {outside.item():g}. "
            "Are these logits?"
        )
    sums = p.sum(dim=1, dtype=torch.promote_types(p.dtype, torch.float32))
    wrong = (sums - 1).abs() > PROBS_TOLERANCE
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            "Rows of `probs` must sum to 1, "
            f"but row {row} (from 0) sums to {sums[row].item():.4f}."
        )
    return p


def check_sample_labels(labels: Any, scores: Tensor, name: str = "logits") -> Tensor:
    """Return ``labels`` as int64 on the scores' device, one in 0..C−1 for each row."""
    y = as_tensor(labels, "labels").to(scores.device)
    if not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool):
        y = y.to(torch.int64)
    y = check_labels(y, scores.shape[1])
    if len(y) != len(scores):
        raise ValueError(
            f"`labels` has {len(y)} entries but `{name}` has {len(scores)} rows."
        )
    return y


def check_counts(
    counts: VectorLike, *, name: str = "class_counts", num_classes: int | None = None
) -> Tensor:
    """Return ``counts`` as an int64 CPU tensor (C,): none negative, not all zero."""
    n = as_tensor(counts, name).cpu()
    if n.ndim != 1 or n.numel() == 0:
        raise ValueError(
            f"`{name}` must be a vector with one entry a class, "
            f"but has shape {tuple(n.shape)}."
        )
    if n.is_floating_point() or n.is_complex() or n.dtype == torch.bool:
        raise TypeError(f"`{name}` must be integers, but are {n.dtype}.")
    n = n.to(torch.int64)
    if num_classes is not None and len(n) != num_classes:
        raise ValueError(
            f"`{name}` has {len(n)} entries but there are {num_classes} classes."
        )
    if (n < 0).any():
        where = int(n.argmin())
        raise ValueError(
            f"`{name}` must not be negative, "
            f"but is {n[where].item()} for class {where}."
        )
    if not n.any():
        raise ValueError(f"`{name}` must not be 0 for every class.")
    return n


def _check_names(class_names: Iterable[str], num_classes: int) -> tuple[str, ...]:
    names = [] if class_names is None else class_names
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        return tuple(f"class {c}" for c in range(num_classes))
    if not all(isinstance(name, str) for name in names):
        raise TypeError("`class_names` must be strings, one a class.")
    if len(names) != num_classes:
        raise ValueError(
            f"`class_names` has {len(names)} names but `logits` has {num_classes} "
            "classes."
        )
    return tuple(str(name) for name in names)


def _check_entries(fields: Mapping[str, Any], known: list[str]) -> None:
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


def _check_destination(path: Path, overwrite: bool) -> None:
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


def _read_safetensors(path: Path) -> dict[str, Any]:
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


def _read_npz(path: Path) -> dict[str, Any]:
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
