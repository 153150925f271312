"""Long-tailed data: the sets, their profiles, and loaders that can be resumed."""

from typing import TYPE_CHECKING

from tailshift.data.batches import Batch, Batches, BatchPlan, Loader, StackedLoader
from tailshift.data.benchmarks import (
    ImageNetLT,
    INaturalist2018,
    PlacesLT,
    known_counts,
)
from tailshift.data.check import DataCheck, check_data
from tailshift.data.cifar import CIFAR10LT, CIFAR100LT
from tailshift.data.dataset import (
    DATASETS,
    PROFILES,
    Dataset,
    DataShape,
    LongTailedData,
    Split,
    profile_counts,
    step_counts,
)
from tailshift.data.digits import DigitsLT
from tailshift.data.feature_split import FeatureSplit
from tailshift.data.features import FeatureCache
from tailshift.data.image_loader import BrokenImageWarning, FileLoader
from tailshift.data.image_split import FileSplit
from tailshift.data.images import Preparation
from tailshift.data.memory import Augmentation, MemoryLoader, MemorySplit
from tailshift.data.own_forms import ImageCSV, ImageFolder, ImageList, parse_data_option
from tailshift.data.parquet import ImageDatasets, ImageParquet
from tailshift.data.randomness import Stream, sample_order
from tailshift.data.samplers import SAMPLERS, ClassSampler, Sampler
from tailshift.deprecation import old_names

__all__ = [
    "CIFAR10LT",
    "CIFAR100LT",
    "DATASETS",
    "PROFILES",
    "SAMPLERS",
    "Augmentation",
    "Batch",
    "BatchPlan",
    "Batches",
    "BrokenImageWarning",
    "ClassSampler",
    "DataCheck",
    "DataShape",
    "Dataset",
    "DigitsLT",
    "FeatureCache",
    "FeatureSplit",
    "FileLoader",
    "FileSplit",
    "INaturalist2018",
    "ImageCSV",
    "ImageDatasets",
    "ImageFolder",
    "ImageList",
    "ImageNetLT",
    "ImageParquet",
    "Loader",
    "LongTailedData",
    "MemoryLoader",
    "MemorySplit",
    "PlacesLT",
    "Preparation",
    "Sampler",
    "Split",
    "StackedLoader",
    "Stream",
    "check_data",
    "known_counts",
    "parse_data_option",
    "profile_counts",
    "sample_order",
    "step_counts",
]

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__, {"FeatureBank": "tailshift.data.FeatureCache"})
