"""Feature banks: a network's features of all images of a data set, kept on disk."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tailshift.data.dataset import DATASETS, Dataset, LongTailedData
from tailshift.data.feature_arrays import checked_arrays, read_arrays
from tailshift.data.feature_files import (
    create_split,
    first_not_finite,
    map_split,
    read_only_tensor,
    split_checksum,
    split_path,
)
from tailshift.data.feature_split import FeatureSplit
from tailshift.data.images import Preparation
from tailshift.data.own_images import (
    SPLIT_NAMES,
    check_every_name,
    hold_out,
    number_labels,
)
from tailshift.files import make_folder
from tailshift.storage import read_json, write_json

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


@dataclass(frozen=True)
class FeatureCache:
    """A folder with the features of all splits of a data set.

    Each split is one safetensors file that is mapped into memory, so that a bank may be
    larger than it. `tailshift features` makes one from images; :meth:`from_arrays` one
    from features that were made elsewhere.

    Example:
        >>> from tempfile import mkdtemp
        >>> x, y = np.random.rand(6, 4), np.array([0, 0, 0, 1, 1, 1])
        >>> bank = FeatureCache.from_arrays(mkdtemp(), train=(x, y), test=(x, y))
        >>> bank.facts.feature_dim, len(bank.data().train)
        (4, 6)
    """

    directory: Path
    facts: BankFacts

    @classmethod
    def load(cls, directory: str | Path) -> "FeatureCache":
        """Return the bank in a folder; its checksums are compared when it is read."""
        folder = Path(directory)
        if not (folder / BANK_FACTS).is_file():
            raise FileNotFoundError(
                f"{folder} is not a feature cache: it has no {BANK_FACTS}. `tailshift "
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
    ) -> "FeatureCache":
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
        arrays = {
            name: checked_arrays(name, *pair) for name, pair in given.items() if pair
        }
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
    ) -> "FeatureCache":
        """Write a bank of features in files of NumPy, and return it.

        Args:
            directory: Folder to write, which must not hold a bank.
            features: A ``.npy`` file of shape (N, d), or an ``.npz`` file with the
                arrays ``features``, ``labels`` and, if splits are given, ``split``:
                train, val or test for each sample.
            labels: A ``.npy`` file of N numbers or texts, if they are not in the other.
        """
        found = read_arrays(Path(features), Path(labels) if labels else None)
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
            read_only_tensor(mapped["features"]),
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


def write_bank(
    folder: Path, facts: Mapping[str, Any], splits: Mapping[str, FeatureSplit]
) -> FeatureCache:
    """Write splits that are in memory as a bank, and return it."""
    if (folder / BANK_FACTS).exists():
        raise FileExistsError(f"{folder} holds a feature cache. Name another folder.")
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
    return FeatureCache.load(folder)


@DATASETS.register("features")
@dataclass(frozen=True)
class BankedFeatures(Dataset):
    """A feature cache."""

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
                "`path` must name a feature cache, but is empty. Give it with "
                "--features BANK."
            )
        return FeatureCache.load(Path(self.path).expanduser()).data()
