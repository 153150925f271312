"""ImageNet-LT, Places-LT and iNaturalist 2018, from their public list files."""

from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeAlias, get_args

import torch
from torch import Tensor

from tailshift.data import dataset, list_files
from tailshift.data.image_split import FileSplit, file_data
from tailshift.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageFiles, Preparation
from tailshift.data.strong_augmentation import Augment, augment_policy

TransformName: TypeAlias = Literal["official", "appendix", "plain"]


@dataclass(frozen=True)
class ListBenchmark(dataset.Dataset):
    """What the three have in common; the class variables tell them apart."""

    lists: ClassVar[dict[str, str]]
    """List file of each split."""
    mean: ClassVar[tuple[float, ...]] = IMAGENET_MEAN
    std: ClassVar[tuple[float, ...]] = IMAGENET_STD
    official_jitter: ClassVar[float] = 0.4

    transform: TransformName = "official"
    """Training crops and colours: as training really was; as the paper's appendix
    says (resized to 256×256, random crop, colour jitter); or crops of any size and
    mirror images alone."""

    image_size: int = 224
    """Height and width of what the network sees; images are resized to 256/224 of it
    before cropping."""

    image_root: str = ""
    """Folder that the paths in the lists start from; empty looks in the data root, and
    in its folder of the set's name."""

    check_counts: bool = True
    """Whether the training list must have the public number of images of each class;
    false takes a cut-down copy."""

    skip_broken: bool = False
    """Skip images that are missing or cannot be decoded, instead of stopping."""

    augment: Augment = "crop_flip"
    """Augmentation after `transform`: none more (``"crop_flip"``), AutoAugment with
    the policy learnt on ImageNet (``"auto"``) or RandAugment (``"rand"``)."""

    cutout: int = 0
    """Side in pixels of a random square of each training image that is set to the mean
    pixel; 0 for none."""

    def __post_init__(self) -> None:
        if self.transform not in get_args(TransformName):
            raise ValueError(
                "`transform` must be official, appendix or plain, but is "
                f"{self.transform!r}."
            )
        self.preparation(self.image_size)  # checks the image size

    def load(
        self, *, root: Path | None = None, seed: int = 0
    ) -> dataset.LongTailedData:
        """Return the data; images are read only when they are needed.

        Args:
            root: The folder of lists and images; None takes the environment variable
                ``TAILSHIFT_DATA``.
            seed: Not used: the splits are given.
        """
        root = dataset.data_root(root)
        files = {
            split: self.find_list(root, name) for split, name in self.lists.items()
        }
        known = known_counts(self.name) if self.check_counts else None
        train = list_files.read_list(files["train"], num_classes=_length(known))
        num_classes = _length(known) or int(train.labels.max()) + 1
        list_files.check_every_class(train.labels, num_classes, f"`{files['train']}`")
        if known is not None:
            _check_counts(train.labels, known, files["train"])
        listed = {"train": train} | {
            split: list_files.read_list(file, num_classes=num_classes)
            for split, file in files.items()
            if split != "train"
        }
        images = self._image_root(root, train.paths[0])
        splits = {split: self._split(images, part) for split, part in listed.items()}
        names = list_files.folder_names(train.paths, train.labels, num_classes)
        return file_data(self.name, splits, names)

    def known_shape(self) -> dataset.DataShape | None:
        """Return the public counts if the training list must have them."""
        if not self.check_counts:
            return None
        return dataset.DataShape(known_counts(self.name), image_size=self.image_size)

    def without_stops(self) -> Self:
        """Return the data set that skips images that are missing."""
        return replace(self, skip_broken=True)

    def find_list(self, root: Path, file_name: str) -> Path:
        """Return a list file: in `root`, its folder ``lists`` or that of the set."""
        places = (root, root / "lists", root / self.name)
        for place in places:
            if (place / file_name).is_file():
                return place / file_name
        looked = ", ".join(f"`{place}`" for place in places)
        raise FileNotFoundError(
            f"{self.name} needs the public list {file_name}, but it is in none of "
            f"{looked}. Put it there, or name another folder with --data-root."
        )

    def _image_root(self, root: Path, example: str) -> Path:
        if self.image_root:
            return root / self.image_root  # an absolute one stands by itself
        below = root / self.name
        return below if (below / example).is_file() else root

    def _split(self, root: Path, part: list_files.LabelledPaths) -> FileSplit:
        return FileSplit(
            ImageFiles(root, part.paths),
            part.labels,
            preparation=self.preparation(self.image_size),
            mean=self.mean,
            std=self.std,
            skip_broken=self.skip_broken,
        )

    def preparation(self, image_size: int) -> Preparation:
        """Return the transforms that `transform` names."""
        make = partial(
            Preparation,
            image_size,
            policy=augment_policy(self.augment),
            cutout=self.cutout,
        )
        if self.transform == "appendix":
            return make(crop="random", jitter=0.4)
        return make(
            jitter=self.official_jitter if self.transform == "official" else 0.0
        )


@dataset.DATASETS.register("imagenet_lt")
@dataclass(frozen=True)
class ImageNetLT(ListBenchmark):
    """ImageNet-LT: 115,846 training images, 1280 down to 5 a class."""

    sentence: ClassVar[str] = (
        "Photographs, ImageNet thinned to a long tail; 1000 classes, list files."
    )
    lists: ClassVar[dict[str, str]] = {
        split: f"ImageNet_LT_{split}.txt" for split in ("train", "val", "test")
    }


@dataset.DATASETS.register("places_lt")
@dataclass(frozen=True)
class PlacesLT(ListBenchmark):
    """Places-LT: 62,500 training images, 4980 down to 5 a class."""

    sentence: ClassVar[str] = (
        "Photographs of scenes, Places thinned to a long tail; 365 classes, list files."
    )
    lists: ClassVar[dict[str, str]] = {
        split: f"Places_LT_{split}.txt" for split in ("train", "val", "test")
    }


@dataset.DATASETS.register("inaturalist2018")
@dataclass(frozen=True)
class INaturalist2018(ListBenchmark):
    """iNaturalist 2018: 437,513 training images, 1000 down to 2 a class."""

    sentence: ClassVar[str] = (
        "Photographs of species, long-tailed by nature; 8142 classes, list files."
    )
    lists: ClassVar[dict[str, str]] = {
        "train": "iNaturalist18_train.txt",
        "test": "iNaturalist18_val.txt",  # the public test labels are withheld
    }
    mean: ClassVar[tuple[float, ...]] = (0.466, 0.471, 0.380)
    std: ClassVar[tuple[float, ...]] = (0.195, 0.194, 0.192)
    official_jitter: ClassVar[float] = 0.0


def known_counts(name: str) -> Tensor:
    """Return the public training images of each class, int64, shape (C,).

    Example:
        >>> [int(known_counts(name).sum()) for name in ("imagenet_lt", "places_lt")]
        [115846, 62500]
    """
    folder = resources.files("tailshift.data") / "counts"
    text = (folder / f"{name}_train_counts.txt").read_text(encoding="utf-8")
    return torch.tensor([int(line) for line in text.split()])


def _length(counts: Tensor | None) -> int | None:
    return None if counts is None else len(counts)


def _check_counts(labels: Tensor, known: Tensor, file: Path) -> None:
    counts = torch.bincount(labels, minlength=len(known))
    if not torch.equal(counts, known):
        c = int((counts != known).nonzero()[0])
        raise ValueError(
            f"`{file}` must list {known[c]} images of class {c} as the public list "
            f"does, but lists {counts[c]}. Fetch it again, or use a cut-down copy "
            "with data.check_counts=false."
        )
