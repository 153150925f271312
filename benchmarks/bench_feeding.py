"""Compare images per second: MemoryLoader against torchvision transforms.

Both shuffle, crop with zero padding 4, flip and normalise batches of 256 images of
32×32×3, from memory, on one thread. The torchvision side is the usual pipeline: PIL
images, per-sample transforms, ``DataLoader(num_workers=0)``.

    python benchmarks/bench_feeding.py

One line a trial and the median ratio; the exit code is 1 below the aim of 10.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Iterable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from tailshift.data.augmentation import Augmentation
from tailshift.data.cifar import MEAN, STD
from tailshift.data.dataset import Split
from tailshift.data.loader import MemoryLoader

BATCH_SIZE = 256
AIM = 10.0


class PILImages(Dataset[tuple[Tensor, int]]):
    """Images in memory that go through PIL, as torchvision's CIFAR class does."""

    def __init__(self, split: Split) -> None:
        self.pixels = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = split.labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def images_per_second(labels_of_batches: Iterable[Tensor]) -> float:
    """Return the rate of one epoch, by processor time: other work does not count."""
    start = time.process_time()
    num_images = sum(len(labels) for labels in labels_of_batches)
    return num_images / (time.process_time() - start)


def main() -> int:
    """Time both, in turn, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_240)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (options.images, 3, 32, 32), dtype=np.uint8)
    labels = torch.from_numpy(rng.integers(0, 100, options.images))
    split = Split(torch.from_numpy(pixels), labels)
    ours = MemoryLoader(
        split,
        batch_size=BATCH_SIZE,
        augmentation=Augmentation(padding=4, flip=True),
        mean=MEAN,
        std=STD,
    )
    theirs = DataLoader(PILImages(split), batch_size=BATCH_SIZE, shuffle=True)

    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    ratios: list[float] = []
    for trial in range(options.trials):
        fast = images_per_second(batch.labels for batch in ours.epoch(trial))
        slow = images_per_second(labels for _, labels in theirs)
        ratios.append(fast / slow)
        print(
            f"trial {trial}: MemoryLoader {fast:,.0f}/s, torchvision {slow:,.0f}/s, "
            f"ratio {ratios[-1]:.1f}"
        )
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.1f} of {options.trials} trials (aim: {AIM:g})")
    return 0 if ratio >= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
