"""Logits, labels and priors of a held-out set, checked, in memory and on disk."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tailshift.predictions.checks import (
    ArrayLike,
    as_tensor,
    check_counts,
    check_logits,
    check_names,
    check_probs,
    check_sample_labels,
)
from tailshift.predictions.files import (
    check_entries,
    read_npz,
    read_safetensors,
    write_safetensors,
)
from tailshift.priors import as_prior

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
        names = check_names(self.class_names, num_classes)
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
        tensors = {key: getattr(self, key) for key in _TENSORS}
        tensors = {key: value for key, value in tensors.items() if value is not None}
        write_safetensors(Path(path), tensors, self.class_names, overwrite)

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
        fields = read_npz(path) if is_npz else read_safetensors(path)
        try:
            check_entries(fields, [*_FIELDS, "probs"] if is_npz else list(_FIELDS))
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
