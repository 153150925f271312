"""Logits, labels and priors of a held-out set, checked, in memory and on disk."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailshift import checks, files, storage
from tailshift.deprecation import renamed_arguments, renamed_attribute
from tailshift.priors import as_prior
from tailshift.registry import did_you_mean

_FORMAT_VERSION = "2"
_UNSEALED_VERSION = "1"  # the same, before files had a checksum


def _write_safetensors(
    path: Path, tensors: dict[str, Tensor], class_names: Sequence[str], overwrite: bool
) -> None:
    """Write the tensors, the names and a checksum, whole or not at all."""
    check_destination(path, overwrite)
    metadata = {
        "tailshift_predictions": _FORMAT_VERSION,
        "class_names": json.dumps(class_names),
    }
    storage.write_tensors(path, tensors, metadata, overwrite=overwrite)


def _check_entries(fields: Mapping[str, Any], known: list[str]) -> None:
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
        file = storage.read_tensors(path)
    except storage.DamagedFileError as error:
        reason = "was changed" if "checksum" in error.reason else "is cut short"
        raise ValueError(f"{path} is no safetensors file or {reason}.") from None
    version = file.metadata.get("tailshift_predictions", _UNSEALED_VERSION)
    if version not in (_UNSEALED_VERSION, _FORMAT_VERSION):
        raise ValueError(
            f"{path} is of format version {version[:40]!r}, "
            f"but this tailshift reads version {_FORMAT_VERSION}."
        )
    if version == _FORMAT_VERSION and not file.is_sealed:
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
    files.check_regular(path)
    files.check_unpacked(
        path, "Write it with Predictions.save, whose files are mapped into memory."
    )
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


HALF_LIMIT = torch.finfo(torch.float16).max


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    r"""What a model answered on a held-out set, and what is needed to re-target it.

    Values are checked once, here, and kept on the CPU. Arrays are taken as well as
    tensors; logits wider than float32 are rounded to it.

    Attributes:
        logits: :math:`f`, float32 or float16, shape (N, C); −inf is allowed.
        labels: :math:`y`, int64, shape (N,); names of ``class_names`` are taken too.
        source_counts: :math:`n_y`, training images of each class, int64, shape (C,).
        logit_prior: The prior that the logits carry, float64, shape (C,).
        class_names: One name per class; ``"class 0"`` … if none is given.
        full_counts: Training images of each class before some were held out, if some
            were, int64, shape (C,): groups of classes go by these.

    Example:
        >>> Predictions(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        Predictions(2 samples, 2 classes, torch.float32)
    """

    logits: Tensor
    labels: Tensor
    source_counts: Tensor | None = None
    logit_prior: Tensor | None = None
    class_names: tuple[str, ...] = ()
    full_counts: Tensor | None = None

    trained_prior = renamed_attribute("trained_prior", "logit_prior")

    def __post_init__(self) -> None:
        f = checks.as_tensor(self.logits, "logits").cpu()
        if f.dtype in (torch.float64, torch.bfloat16):
            f = f.float()
        f = checks.check_logits(f).contiguous()  # (N, C)
        num_classes = f.shape[1]
        names = checks.check_names(self.class_names, num_classes)
        y = checks.check_sample_labels(
            _positions(self.labels, names), f
        ).contiguous()  # (N,)
        n, p, full = self.source_counts, self.logit_prior, self.full_counts
        if n is not None:
            n = checks.check_counts(n, name="source_counts", num_classes=num_classes)
        if full is not None:
            full = checks.check_counts(
                full, name="full_counts", num_classes=num_classes
            )
        if p is not None:
            p = checks.as_tensor(p, "logit_prior")
            p = as_prior(p, name="logit_prior", num_classes=num_classes)
        for name, value in zip(_FIELDS, (f, y, n, p, full, names), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    @renamed_arguments(trained_prior="logit_prior")
    def from_probs(
        cls,
        probs: checks.ArrayLike,
        labels: checks.ArrayLike,
        source_counts: Tensor | None = None,
        logit_prior: Tensor | None = None,
        class_names: tuple[str, ...] = (),
        full_counts: Tensor | None = None,
    ) -> "Predictions":
        """Return predictions whose logits are log probabilities; log 0 is −inf.

        Example:
            >>> Predictions.from_probs(torch.eye(2), torch.tensor([0, 1])).logits
            tensor([[0., -inf],
                    [-inf, 0.]])
        """
        p = checks.check_probs(probs)
        f = p.to(torch.promote_types(p.dtype, torch.float32)).log()
        y: Any = labels
        return cls(f, y, source_counts, logit_prior, class_names, full_counts)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.logits.shape[1]

    @property
    def group_counts(self) -> Tensor | None:
        """The counts that make a class one of many, medium or few images, (C,)."""
        return self.source_counts if self.full_counts is None else self.full_counts

    @property
    def fits_half(self) -> bool:
        """Whether half precision can hold the logits."""
        return not _beyond_half(self.logits).any()

    def half(self) -> "Predictions":
        """Return a copy with half-precision logits, for a file half the size."""
        f = self.logits
        if not self.fits_half:
            beyond = _beyond_half(f)
            raise ValueError(
                f"`logits` must lie within ±{HALF_LIMIT:.0f} to be kept in half "
                f"precision, but {f[beyond][0].item():g} is among them."
            )
        return replace(self, logits=f.to(torch.float16, copy=True))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one safetensors file, whole or not at all.

        Args:
            path: File to write; its folder must exist.
            overwrite: Replace a file that is there, instead of raising.
        """
        tensors = {key: getattr(self, key) for key in _TENSORS}
        tensors = {key: value for key, value in tensors.items() if value is not None}
        _write_safetensors(Path(path), tensors, self.class_names, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Predictions":
        """Return the predictions in a file, their logits memory-mapped.

        An ``.npz`` archive is imported, without pickle: ``labels``, either ``logits``
        or ``probs``, and optionally ``source_counts``, ``logit_prior`` and
        ``class_names``. Any other file is read as safetensors with the same entries.
        """
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(
                f"There is no predictions file {path}. "
                "Write one with Predictions.save(path)."
            )
        is_npz = path.suffix.lower() == ".npz"
        fields = read_npz(path) if is_npz else read_safetensors(path)
        if "logit_prior" not in fields and "trained_prior" in fields:  # of 0.2
            fields["logit_prior"] = fields.pop("trained_prior")
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


# A dataclass writes its own constructor, so it is decorated here.
_accept_old_names = renamed_arguments(trained_prior="logit_prior")
Predictions.__init__ = _accept_old_names(  # type: ignore[method-assign]
    Predictions.__init__
)


def _beyond_half(logits: Tensor) -> Tensor:
    """Return which finite logits half precision cannot hold, shape (N, C)."""
    return (logits.abs() > HALF_LIMIT) & logits.isfinite()


def _positions(labels: Any, class_names: tuple[str, ...]) -> Any:
    """Return labels by class name as positions; any others as they are."""
    is_vector = isinstance(labels, Iterable) and getattr(labels, "ndim", 1) == 1
    names = [] if isinstance(labels, Tensor) or not is_vector else list(labels)
    position = {name: index for index, name in enumerate(class_names)}
    if not names or any(
        not isinstance(name, str) or name not in position for name in names
    ):
        return labels
    return [position[name] for name in names]


_TENSORS = ("logits", "labels", "source_counts", "logit_prior", "full_counts")
_FIELDS = (*_TENSORS, "class_names")
