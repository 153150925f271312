"""Compare images per second of our two loaders with what they replace or wrap.

1. In memory: `MemoryLoader` against torchvision's usual pipeline. Both shuffle, crop
   with zero padding 4, flip and normalise batches of 256 images of 32×32×3, on one
   thread; the torchvision side has PIL images, per-sample transforms and
   ``DataLoader(num_workers=0)``. By processor time; aim: 10 times as many.
2. JPEGs: `FileLoader` against a bare loop in as many processes that decodes and
   transforms the same 500×375 images (random resized crop to 224, flip, colour
   jitter, normalise) and throws them away. By the clock; aim: 90 % of it.

    python benchmarks/bench_feeding.py

One line a trial and the median ratios; the exit code is 1 below an aim.
"""

import argparse
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from tailshift.data.augmentation import Augmentation
from tailshift.data.cifar import MEAN, STD
from tailshift.data.decoding import ImageFiles, load_image
from tailshift.data.file_split import FileSplit
from tailshift.data.memory import MemorySplit
from tailshift.data.normalisation import Normalisation
from tailshift.data.preparation import IMAGENET_MEAN, IMAGENET_STD, Preparation

MEMORY_BATCH, MEMORY_AIM = 256, 10.0
JPEG_BATCH, JPEG_AIM = 64, 0.9
PREPARATION = Preparation(224, jitter=0.4)


class PILImages(Dataset[tuple[Tensor, int]]):
    """Images in memory that go through PIL, as torchvision's CIFAR class does."""

    def __init__(self, split: MemorySplit) -> None:
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


def bench_memory(num_images: int, trials: int) -> float:
    """Return how many times as fast the in-memory loader is."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (num_images, 3, 32, 32), dtype=np.uint8)
    split = MemorySplit(
        torch.from_numpy(pixels),
        torch.from_numpy(rng.integers(0, 100, num_images)),
        MEAN,
        STD,
        Augmentation(padding=4, flip=True),
    )
    ours = split.loader(batch_size=MEMORY_BATCH, training=True)
    theirs = DataLoader(PILImages(split), batch_size=MEMORY_BATCH, shuffle=True)
    return median_ratio(
        "MemoryLoader",
        lambda trial: rate(time.process_time, (b.labels for b in ours.epoch(trial))),
        "torchvision",
        lambda trial: rate(time.process_time, (labels for _, labels in theirs)),
        trials,
    )


def bench_jpeg(num_images: int, workers: int, trials: int) -> float:
    """Return the share of a bare loop's speed that the file loader reaches."""
    with tempfile.TemporaryDirectory() as folder:
        images = write_jpegs(Path(folder), num_images)
        split = FileSplit(images, torch.zeros(num_images).long(), PREPARATION)
        shares = [range(w, num_images, workers) for w in range(workers)]

        def ours(trial: int) -> float:
            loader = split.loader(
                batch_size=JPEG_BATCH, training=True, num_workers=workers
            )
            return rate(processor_time, (b.labels for b in loader.epoch(trial)))

        def bare(trial: int) -> float:
            pool = multiprocessing.Pool(workers, _start_bare, [images])
            return rate(processor_time, _results(pool, shares))

        return median_ratio("FileLoader", ours, "bare loop", bare, trials)


def write_jpegs(folder: Path, num_images: int) -> ImageFiles:
    """Write smooth random pictures, about as large as photographs of their size."""
    rng = np.random.default_rng(0)
    for i in range(num_images):
        pixels = rng.integers(0, 256, (38, 50, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC)
        picture.save(folder / f"{i}.jpg", quality=90)
    return ImageFiles(folder, tuple(f"{i}.jpg" for i in range(num_images)))


def _start_bare(images: ImageFiles) -> None:
    torch.set_num_threads(1)
    global _images, _transform, _normalise
    _images, _transform = images, PREPARATION.training()
    _normalise = Normalisation(IMAGENET_MEAN, IMAGENET_STD)


def _bare_loop(share: range) -> range:
    for i in share:
        _normalise(_transform(load_image(_images, i)))
    return share


def rate(clock: Callable[[], float], parts: Iterable[Tensor | range]) -> float:
    """Return images a second."""
    start = clock()
    num_images = sum(len(part) for part in parts)
    return num_images / (clock() - start)


def median_ratio(
    our_name: str,
    ours: Callable[[int], float],
    their_name: str,
    theirs: Callable[[int], float],
    trials: int,
) -> float:
    """Time both in turn; print each trial, return the median ratio."""
    ratios: list[float] = []
    for trial in range(trials):
        a, b = ours(trial), theirs(trial)
        ratios.append(a / b)
        print(
            f"trial {trial}: {our_name} {a:,.0f}/s, {their_name} {b:,.0f}/s, "
            f"ratio {ratios[-1]:.2f}"
        )
    return statistics.median(ratios)


def main() -> int:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_240)
    parser.add_argument("--jpegs", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    memory = bench_memory(options.images, options.trials)
    print(f"in memory: median ratio {memory:.1f} (aim: {MEMORY_AIM:g})")
    jpeg = bench_jpeg(options.jpegs, options.workers, options.trials)
    print(f"JPEG, {options.workers} workers: median {jpeg:.2f} (aim: {JPEG_AIM:g})")
    return 0 if memory >= MEMORY_AIM and jpeg >= JPEG_AIM else 1


if __name__ == "__main__":
    sys.exit(main())
