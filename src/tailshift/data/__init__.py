"""Long-tailed data: the sets, their profiles, and loaders that can be resumed."""

from tailshift.data.augmentation import Augmentation
from tailshift.data.cifar import CIFAR10LT, CIFAR100LT
from tailshift.data.dataset import DATASETS, Dataset, LongTailedData, Split
from tailshift.data.digits import DigitsLT
from tailshift.data.loader import Batch, MemoryLoader
from tailshift.data.profiles import PROFILES, profile_counts, step_counts
from tailshift.data.randomness import Stream, sample_order

__all__ = [
    "CIFAR10LT",
    "CIFAR100LT",
    "DATASETS",
    "PROFILES",
    "Augmentation",
    "Batch",
    "Dataset",
    "DigitsLT",
    "LongTailedData",
    "MemoryLoader",
    "Split",
    "Stream",
    "profile_counts",
    "sample_order",
    "step_counts",
]
