"""What the length of a run depends on, known before any image is read."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tailshift.config import RunConfig
from tailshift.data import Dataset, known_counts, profile_counts
from tailshift.data.benchmarks import ListBenchmark
from tailshift.data.cifar import CIFARLT

CIFAR_TRAIN_IMAGES = 50_000


@dataclass(frozen=True, eq=False)
class DataShape:
    """Class counts and image size of a training split."""

    class_counts: Tensor
    """Training images of each class, int64, shape (C,)."""
    image_size: int
    """Height and width."""
    in_channels: int = 3

    @property
    def num_samples(self) -> int:
        """Training images."""
        return int(self.class_counts.sum())

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_counts)

    @property
    def imbalance_ratio(self) -> float:
        """Largest / smallest count."""
        return float(self.class_counts.max() / self.class_counts.min())


def data_shape(config: RunConfig, data_root: Path | None = None) -> DataShape:
    """Return the shape of a configuration's data; it is read only if it must be."""
    shape = known_shape(config.data)
    if shape is not None:
        return shape
    data = config.data.load(root=data_root, seed=config.seed)
    return DataShape(data.class_counts, data.image_size, data.in_channels)


def known_shape(dataset: Dataset) -> DataShape | None:
    """Return the shape of a benchmark's training split; None for any other data.

    Example:
        >>> from tailshift.data import CIFAR100LT
        >>> shape = known_shape(CIFAR100LT(imbalance_ratio=100))
        >>> shape.num_samples, shape.num_classes, shape.imbalance_ratio
        (10847, 100, 100.0)
    """
    if isinstance(dataset, CIFARLT):
        num_classes = dataset.layout.num_classes
        largest = CIFAR_TRAIN_IMAGES // num_classes
        counts = profile_counts(
            dataset.profile, largest, dataset.imbalance_ratio, num_classes
        )
        return DataShape(counts, image_size=32)
    if isinstance(dataset, ListBenchmark) and dataset.check_counts:
        return DataShape(known_counts(dataset.name), image_size=dataset.image_size)
    return None
