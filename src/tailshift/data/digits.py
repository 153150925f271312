"""The embedded digits, made long-tailed: real images that need no download."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.dataset import DATASETS, PROFILES, Dataset, LongTailedData, Profile
from tailshift.data.memory import Augmentation, MemorySplit
from tailshift.data.randomness import Stream, sample_order
from tailshift.priors import check_imbalance_ratio

NUM_CLASSES = 10
TEST_PER_CLASS = 50
MAX_TRAIN, MIN_TRAIN = 100, 2
DIGITS_MEAN, DIGITS_STD = (0.305,), (0.376,)
MAX_VAL = MAX_TRAIN // 5  # the rarest digit has 174 images: 50 + 20 + 100 fit


@DATASETS.register("digits_lt")
@dataclass(frozen=True)
class DigitsLT(Dataset):
    """scikit-learn's 8×8 digits, 0 the most frequent and 9 the rarest.

    For each seed the images are split anew: 50 a class for the test, and from the
    rest a long-tailed training split of 2 to 100 a class and a validation split of a
    fifth of that, at least 1 a class. At one seed the test images are the same at
    every imbalance ratio, and a steeper training split lies inside a flatter one.

    Example:
        >>> data = DigitsLT(imbalance_ratio=50).load(root=None, seed=0)
        >>> data.class_counts
        tensor([100,  64,  41,  27,  17,  11,   7,   4,   3,   2])
    """

    sentence: ClassVar[str] = (
        "8×8 grey digits embedded in scikit-learn, thinned to a long tail; "
        "10 classes, no download."
    )

    imbalance_ratio: float = 50.0
    """Largest / smallest training count, >= 1; no class falls below 2 images."""

    profile: Profile = "exponential"
    """How the counts fall over the classes."""

    def __post_init__(self) -> None:
        check_imbalance_ratio(self.imbalance_ratio)
        PROFILES.get(self.profile)

    @property
    def option(self) -> str:
        """Nothing: the digits come with scikit-learn."""
        return ""

    def load(self, *, root: Path | None = None, seed: int = 0) -> LongTailedData:
        """Return the data; `root` is not needed, `seed` decides the split."""
        whole = _read_digits()
        counts = PROFILES.get(self.profile)(
            MAX_TRAIN, self.imbalance_ratio, NUM_CLASSES
        ).clamp(min=MIN_TRAIN)
        train, val, test = (
            whole.subset(ids) for ids in _split(whole.labels, counts, seed)
        )
        return LongTailedData(
            name=self.name,
            train=train,
            val=val,
            test=test,
            class_names=tuple(str(digit) for digit in range(NUM_CLASSES)),
            fingerprint=train.fingerprint(),
        )


def _read_digits() -> MemorySplit:
    from sklearn.datasets import load_digits  # a second to import: only when needed

    digits = load_digits()
    grey: NDArray[np.uint8] = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    images = torch.from_numpy(grey)[:, None]  # (1797, 1, 8, 8)
    return MemorySplit(images, labels, DIGITS_MEAN, DIGITS_STD, Augmentation(padding=1))


def _split(labels: Tensor, counts: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of training, validation and test images, class by class."""
    order = sample_order(len(labels), seed, epoch=0, stream=Stream.SPLIT)
    train, val, test = [], [], []
    for label, count in enumerate(counts.tolist()):
        ids = order[labels[order] == label]
        test.append(ids[:TEST_PER_CLASS])
        ids = ids[TEST_PER_CLASS:]
        val.append(ids[: max(1, round(count / 5))])
        train.append(ids[MAX_VAL : MAX_VAL + count])
    return torch.cat(train), torch.cat(val), torch.cat(test)
