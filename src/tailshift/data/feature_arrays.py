"""Features that were made elsewhere, read from arrays and NumPy files."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tailshift.checks import as_tensor
from tailshift.data.feature_files import first_not_finite, read_only_tensor
from tailshift.files import check_regular, check_unpacked


def read_arrays(features: Path, labels: Path | None) -> dict[str, NDArray[Any]]:
    """Return the arrays ``features``, ``labels`` and, if there is one, ``split``."""
    arrays = _read_numpy(features, "features")
    if labels is not None:
        found = _read_numpy(labels, "labels")
        arrays |= {name: found[name] for name in found if name == "labels"}
    for name in ("features", "labels"):
        if name not in arrays:
            raise ValueError(
                f"{features} must come with {name}, but has "
                f"{', '.join(sorted(arrays)) or 'nothing'}. Save them in one .npz file "
                "as `features` and `labels`, or name a file of labels (--labels)."
            )
    return arrays


def _read_numpy(path: Path, name: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive, or a lone one, mapped, under the name given."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file `{path}`.")
    check_regular(path)
    check_unpacked(
        path, "Save each array as an .npy file, which is mapped into memory."
    )
    try:
        with path.open("rb") as file:  # NumPy leaves a broken archive open
            if file.read(4) in (b"PK\x03\x04", b"PK\x05\x06"):
                file.seek(0)
                return dict(np.load(file, allow_pickle=False))
        # Mapped, so that a header which declares more than there is takes no memory.
        return {name: np.load(path, mmap_mode="r", allow_pickle=False)}
    except PermissionError:
        raise
    except Exception:  # a broken archive may raise almost anything
        raise ValueError(f"{path} must be arrays saved by NumPy, but is not.") from None


def checked_arrays(name: str, features: Any, labels: Any) -> tuple[Tensor, list[Any]]:
    """Return features (N, d) and as many labels, or refuse them in a sentence."""
    x = _as_features(features, name)
    y = np.asarray(labels)
    fits = y.shape == x.shape[:1] and y.size > 0
    if x.ndim != 2 or not x.is_floating_point() or not fits:
        came = f"{len(y)} labels" if y.ndim == 1 else f"labels of shape {y.shape}"
        raise ValueError(
            f"`{name}` must be features of shape (N, d), floating point, and N labels, "
            f"but has {x.dtype} of shape {tuple(x.shape)} and {came}."
        )
    x = x.float()
    if (row := first_not_finite(x[None].numpy())) is not None:
        raise ValueError(
            f"`{name}` must have finite features, but those of sample {row} are not."
        )
    return x, y.tolist()


def _as_features(features: Any, name: str) -> Tensor:
    """Return features as a tensor; those mapped into memory stay there, not copied."""
    is_mapped = isinstance(features, np.memmap) and features.dtype == np.float32
    if is_mapped and features.flags.c_contiguous:
        return read_only_tensor(features)
    return as_tensor(features, name).cpu()
