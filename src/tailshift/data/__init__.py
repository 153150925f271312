"""Long-tailed data: the sets, their profiles, and loaders that can be resumed."""

from tailshift.data.augmentation import Augmentation
from tailshift.data.batches import Batch, BatchPlan, Loader
from tailshift.data.benchmarks import (
    ImageNetLT,
    INaturalist2018,
    PlacesLT,
    known_counts,
)
from tailshift.data.check import DataCheck, check_data
from tailshift.data.cifar import CIFAR10LT, CIFAR100LT
from tailshift.data.dataset import DATASETS, Dataset, LongTailedData
from tailshift.data.digits import DigitsLT
from tailshift.data.file_loader import BrokenImageWarning, FileLoader
from tailshift.data.file_split import FileSplit
from tailshift.data.image_csv import ImageCSV
from tailshift.data.image_folder import ImageFolder
from tailshift.data.image_list import ImageList
from tailshift.data.image_parquet import ImageParquet
from tailshift.data.memory import MemoryLoader, MemorySplit
from tailshift.data.option import parse_data_option
from tailshift.data.preparation import Preparation
from tailshift.data.profiles import PROFILES, profile_counts, step_counts
from tailshift.data.randomness import Stream, sample_order
from tailshift.data.samplers import SAMPLERS, Sampler
from tailshift.data.split import Split
from tailshift.data.stacked import Batches, StackedLoader

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
    "DataCheck",
    "Dataset",
    "DigitsLT",
    "FileLoader",
    "FileSplit",
    "INaturalist2018",
    "ImageCSV",
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
