"""Feature banks: a network's features of all images of a data set, kept on disk."""

import errno
import json
import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from tailshift.checks import as_tensor
from tailshift.data.batches import Batch, BatchPlan, Loader, Request
from tailshift.data.dataset import DATASETS, Dataset, LongTailedData, Split
from tailshift.data.images import Preparation
from tailshift.data.own_images import (
    SPLIT_NAMES,
    check_every_name,
    hold_out,
    number_labels,
)
from tailshift.data.randomness import Stream, hashed_below
from tailshift.storage import (
    check_regular,
    check_unpacked,
    make_folder,
    naming_file,
    read_json,
    write_json,
)

BANK_FACTS = "bank.json"
SPLITS = ("train", "val", "test")


class SplitFacts(BaseModel):
    """What bank.json says of a split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: Annotated[int, Field(ge=0)]
    views: Annotated[int, Field(ge=1)] = 1
    fingerprint: str = ""
    """Which images these are."""
    checksum: str
    """CRC-32 of the file's data."""


class BankFacts(BaseModel):
    """What bank.json holds: whose features these are, of which images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str
    """The data set's registered name."""
    model: dict[str, Any]
    """The network's section of a configuration."""
    weights: str
    """16 hex digits that tell which weights the network had."""
    preparation: dict[str, Any] | None = None
    """How image files became what the network saw; None if they were in memory."""
    skip_broken: bool = False
    """Whether images that cannot be read were skipped."""
    class_names: tuple[str, ...]
    feature_dim: Annotated[int, Field(ge=1)]
    in_channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: dict[str, SplitFacts]


@dataclass(frozen=True, eq=False)
class FeatureSplit(Split):
    """Features and labels of one split; training draws one of several views.

    Example:
        >>> split = FeatureSplit(torch.randn(1, 5, 8), torch.arange(5))
        >>> next(split.loader(batch_size=2, training=False).epoch(0)).images.shape
        torch.Size([2, 8])
    """

    features: Tensor
    """Half or single precision, shape (views, N, d); the first view is unaltered."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    mean: tuple[float, ...] = (0.0,)
    """Per channel, of the pixels in [0, 1] that the network saw."""

    std: tuple[float, ...] = (1.0,)
    """Per channel, of those pixels."""

    in_channels: int = 1
    image_size: int = 1
    preparation: Preparation | None = None
    """How image files became what the network saw; None if they were in memory."""

    network: Mapping[str, Any] | None = None
    """The network's section of a configuration; None if nothing says."""

    weights: str = ""
    """16 hex digits that tell which weights the network had."""

    rows: NDArray[np.int64] | None = None
    """Rows of the features that belong to the split; None is all of them."""

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or not self.features.is_floating_point():
            raise ValueError(
                "`features` must be floating point of shape (views, N, d), but is "
                f"{self.features.dtype} of shape {tuple(self.features.shape)}."
            )
        num_rows = self.features.shape[1] if self.rows is None else len(self.rows)
        self._check_labels(num_rows)

    def subset(self, rows: Tensor) -> "FeatureSplit":
        """Return the split of some rows: their indices, or a mask, shape (N,)."""
        own = np.arange(len(self)) if self.rows is None else self.rows
        chosen = own[rows.numpy()]
        return replace(self, labels=self.labels[rows], rows=chosen)

    def take(self, sample_ids: Tensor, views: NDArray[np.int64] | int = 0) -> Tensor:
        """Return features of some samples, float32, shape (B, d).

        Args:
            sample_ids: Positions in the split, shape (B,).
            views: Which view of each.
        """
        ids = sample_ids.numpy()
        rows = ids if self.rows is None else self.rows[ids]
        if isinstance(views, int):
            return self.features[views][torch.from_numpy(rows)].float()
        return self.features[torch.from_numpy(views), torch.from_numpy(rows)].float()

    def chunks(self, size: int, view: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features (B, d) and labels (B,) of all samples, in order.

        Args:
            size: B, the last chunk may be smaller.
            view: Which view.
        """
        for ids in torch.split(torch.arange(len(self)), size):
            yield self.take(ids, view), self.labels[ids]

    def keys(self) -> tuple[str, ...]:
        """Return a checksum of each sample's features, in hex digits."""
        parts = (features for features, _ in self.chunks(4096))
        return tuple(
            f"{zlib.crc32(row.tobytes()):08x}" for part in parts for row in part.numpy()
        )

    def fingerprint(self) -> str:
        """Return 16 hex digits that tell which samples these are, in any order."""
        joined = "".join(sorted(self.keys())).encode()
        return f"{zlib.crc32(joined):08x}{zlib.adler32(joined):08x}"

    def _loader(
        self, plan: BatchPlan, *, training: bool, num_workers: int | None
    ) -> Loader:
        return FeatureLoader(self, plan, training=training)


class FeatureLoader(Loader):
    """Yield the batches of a plan from a bank's features.

    Args:
        split: Features and labels.
        plan: Which samples each batch has.
        training: Whether to draw one of the views for each sample.
    """

    def __init__(self, split: FeatureSplit, plan: BatchPlan, *, training: bool) -> None:
        super().__init__(plan)
        self.split = split
        self.num_views = len(split.features) if training else 1

    def _serve(self, requests: list[Request]) -> Iterator[Batch]:
        return map(self._batch, requests)

    def _batch(self, request: Request) -> Batch:
        ids = torch.from_numpy(request.sample_ids)
        views: NDArray[np.int64] | int = 0
        if self.num_views > 1:
            views = hashed_below(
                self.num_views,
                sample_ids=request.sample_ids,
                seed=self.plan.seed,
                epoch=request.epoch,
                occurrences=request.occurrences,
                stream=Stream.VIEW,
            )
        return Batch(self.split.take(ids, views), self.split.labels[ids], ids)


@dataclass(frozen=True)
class FeatureBank:
    """A folder with the features of all splits of a data set.

    Each split is one safetensors file that is mapped into memory, so that a bank may be
    larger than it. `tailshift features` makes one from images; :meth:`from_arrays` one
    from features that were made elsewhere.

    Example:
        >>> from tempfile import mkdtemp
        >>> x, y = np.random.rand(6, 4), np.array([0, 0, 0, 1, 1, 1])
        >>> bank = FeatureBank.from_arrays(mkdtemp(), train=(x, y), test=(x, y))
        >>> bank.facts.feature_dim, len(bank.data().train)
        (4, 6)
    """

    directory: Path
    facts: BankFacts

    @classmethod
    def load(cls, directory: str | Path) -> "FeatureBank":
        """Return the bank in a folder; its checksums are compared when it is read."""
        folder = Path(directory)
        if not (folder / BANK_FACTS).is_file():
            raise FileNotFoundError(
                f"{folder} is not a feature bank: it has no {BANK_FACTS}. `tailshift "
                "features` makes one, and finishes one that was interrupted."
            )
        try:
            facts = BankFacts.model_validate(read_json(folder / BANK_FACTS))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"{folder / BANK_FACTS} is damaged: `{where}` {first['msg']}."
            ) from None
        for name in ("train", "test"):
            if name not in facts.splits:
                raise ValueError(
                    f"{folder / BANK_FACTS} must name the splits train and test, but "
                    f"{name} is missing. Make it again with `tailshift features "
                    "--force`."
                )
        bank = cls(folder, facts)
        for name in facts.splits:
            bank._mapped(name)
        return bank

    @classmethod
    def from_arrays(
        cls,
        directory: str | Path,
        *,
        train: "tuple[Any, Any]",
        test: "tuple[Any, Any] | None" = None,
        val: "tuple[Any, Any] | None" = None,
    ) -> "FeatureBank":
        """Write a bank of features that were made elsewhere, and return it.

        Args:
            directory: Folder to write, which must not hold a bank.
            train: Features (N, d) and labels (N,), numbers or text, of the training
                samples.
            test: Those of the test; without it a fifth of each class is held out.
            val: Those of the validation, if any.
        """
        folder = Path(directory)
        given = {"train": train, "val": val, "test": test}
        arrays = {name: _checked(name, *pair) for name, pair in given.items() if pair}
        names = [str(label) for _, labels in arrays.values() for label in labels]
        numbers, class_names = number_labels(names)
        parts = torch.split(numbers, [len(labels) for _, labels in arrays.values()])
        splits = {
            name: FeatureSplit(features[None], part)
            for (name, (features, _)), part in zip(arrays.items(), parts, strict=True)
        }
        if "test" not in splits:
            whole = splits["train"]
            held = hold_out(whole.keys(), whole.labels, {"test": 0.2})
            splits = {
                name: whole.subset(torch.from_numpy(held[name]))
                for name in ("train", "test")
            }
        check_every_name(splits["train"].labels, class_names, str(folder))
        dim = splits["train"].features.shape[2]
        facts = {
            "data": "features",
            "model": {"name": "features", "frozen": True},
            "weights": "",
            "class_names": class_names,
            "feature_dim": dim,
            "in_channels": dim,
            "image_size": 1,
            "mean": (0.0,),
            "std": (1.0,),
        }
        return write_bank(folder, facts, splits)

    @classmethod
    def from_file(
        cls,
        directory: str | Path,
        features: str | Path,
        labels: str | Path | None = None,
    ) -> "FeatureBank":
        """Write a bank of features in files of NumPy, and return it.

        Args:
            directory: Folder to write, which must not hold a bank.
            features: A ``.npy`` file of shape (N, d), or an ``.npz`` file with the
                arrays ``features``, ``labels`` and, if splits are given, ``split``:
                train, val or test for each sample.
            labels: A ``.npy`` file of N numbers or texts, if they are not in the other.
        """
        found = _read_arrays(Path(features), Path(labels) if labels else None)
        x, y = found["features"], found["labels"]
        if x.ndim != 2 or x.dtype.kind not in "biuf" or y.shape != x.shape[:1]:
            raise ValueError(
                f"{features} must have numbers of shape (N, d) as `features` and N "
                f"`labels`, but has {x.dtype} of shape {x.shape} and {y.shape}."
            )
        if "split" not in found:
            return cls.from_arrays(directory, train=(x, y))
        split = found["split"]
        names = split.tolist() if split.shape == y.shape else [None]
        named = [SPLIT_NAMES.get(str(name).lower()) for name in names]
        if None in named:
            raise ValueError(
                f"`split` in {features} must be train, val or test for each of the "
                f"{len(x)} samples, but is not."
            )
        rows = {name: np.array([n == name for n in named]) for name in SPLITS}
        parts = {name: (x[r], y[r]) for name, r in rows.items() if r.any()}
        if not parts.keys() >= {"train"}:
            raise ValueError(f"`split` in {features} must name train, but never does.")
        return cls.from_arrays(directory, **parts)

    @property
    def settings(self) -> list[str]:
        """What `load_recipe` takes to train on the bank."""
        chosen = {"data.name": "features", "data.path": str(self.directory)}
        chosen |= {f"model.{key}": value for key, value in self.facts.model.items()}
        return [f"{key}={as_toml(value)}" for key, value in chosen.items()]

    def split(self, name: str) -> FeatureSplit:
        """Return a split, mapped into memory, without samples that were skipped."""
        facts, mapped = self.facts, self._mapped(name)
        if split_checksum(mapped) != facts.splits[name].checksum:
            raise ValueError(
                f"{split_path(self.directory, name)} is damaged: its checksum does not "
                "fit its content. Make it again with `tailshift features --force`."
            )
        if (row := first_not_finite(mapped["features"])) is not None:
            raise ValueError(
                f"{split_path(self.directory, name)} must have finite features, but "
                f"those of sample {row} are not. Make it again with `tailshift "
                "features --force`."
            )
        labels = torch.from_numpy(mapped["labels"].astype(np.int64))
        prep = facts.preparation
        split = FeatureSplit(
            _as_tensor(mapped["features"]),
            labels,
            mean=facts.mean,
            std=facts.std,
            in_channels=facts.in_channels,
            image_size=facts.image_size,
            preparation=None if prep is None else Preparation(**prep),
            network=facts.model,
            weights=facts.weights,
        )
        return split if (labels >= 0).all() else split.subset(labels >= 0)

    def _mapped(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a split, whose shape is compared."""
        about = self.facts.splits[name]
        shape = (about.views, about.samples, self.facts.feature_dim)
        return map_split(split_path(self.directory, name), shape)

    def data(self) -> LongTailedData:
        """Return the splits as training takes them."""
        splits = {name: self.split(name) for name in self.facts.splits}
        return LongTailedData(
            name=self.facts.data,
            train=splits["train"],
            val=splits.get("val"),
            test=splits["test"],
            class_names=self.facts.class_names,
            fingerprint=self.facts.splits["train"].fingerprint,
        )


def as_toml(value: str | float) -> str:
    """Return text, a number or a truth as a setting has it, whatever a text holds."""
    # JSON's escapes are TOML's, but for halves of an emoji and the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read_arrays(features: Path, labels: Path | None) -> dict[str, NDArray[Any]]:
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


def _as_tensor(array: NDArray[Any]) -> Tensor:
    """Return an array that is only read as a tensor of the same memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*not writable", category=UserWarning
        )
        return torch.from_numpy(array)


def _checked(name: str, features: Any, labels: Any) -> tuple[Tensor, list[Any]]:
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
        return _as_tensor(features)
    return as_tensor(features, name).cpu()


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
        raise FileNotFoundError(f"the feature bank {path.parent} has no {path.name}.")
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


def write_bank(
    folder: Path, facts: Mapping[str, Any], splits: Mapping[str, FeatureSplit]
) -> FeatureBank:
    """Write splits that are in memory as a bank, and return it."""
    if (folder / BANK_FACTS).exists():
        raise FileExistsError(f"{folder} holds a feature bank. Name another folder.")
    make_folder(folder)
    about = {}
    for name, split in splits.items():
        views, samples, dim = len(split.features), len(split), split.features.shape[2]
        arrays = create_split(split_path(folder, name), (views, samples, dim))
        for view in range(views):
            done = 0
            for features, labels in split.chunks(4096, view):
                rows = slice(done, done + len(labels))
                arrays["features"][view, rows], arrays["labels"][rows] = (
                    features,
                    labels,
                )
                done += len(labels)
        about[name] = {
            "samples": samples,
            "views": views,
            "fingerprint": split.fingerprint(),
            "checksum": split_checksum(arrays),
        }
    write_json(folder / BANK_FACTS, {**facts, "splits": about})
    return FeatureBank.load(folder)


@DATASETS.register("features")
@dataclass(frozen=True)
class BankedFeatures(Dataset):
    """A feature bank."""

    sentence: ClassVar[str] = "Features of your images, from `tailshift features`."

    path: str = ""
    """The bank's folder."""

    @property
    def option(self) -> str:
        """What `tailshift train` needs besides a recipe to find the data."""
        return "--features BANK"

    def load(self, *, root: Path | None = None, seed: int = 0) -> LongTailedData:
        """Return the bank's splits.

        Args:
            root: Not used.
            seed: Not used.
        """
        if not self.path:
            raise ValueError(
                "`path` must name a feature bank, but is empty. Give it with "
                "--features BANK."
            )
        return FeatureBank.load(Path(self.path).expanduser()).data()
