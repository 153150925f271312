"""Compare images per second of our two loaders with what they replace or wrap.

1. In memory: `MemoryLoader` against torchvision's usual pipeline. Both shuffle, crop
   with zero padding 4, flip and normalise batches of 256 images of 32×32×3, on one
   thread; the torchvision side has PIL images, per-sample transforms and
   ``DataLoader(num_workers=0)``. By processor time; aim: 10 times as many.
2. JPEGs: `FileLoader` against a bare loop in as many processes that decodes and
   transforms the same 500×375 images (random resized crop to 224, flip, colour
   jitter, normalise), puts them into batches and throws these away. By the processor
   time of all processes; aim: 90 % of it. What the clock says is printed beside it:
   on a machine with nothing else to do it is the same.

    python benchmarks/bench_feeding.py

One line a trial and the median ratios; the exit code is 1 below an aim.
"""

import argparse
import collections
import multiprocessing
import os
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

from tailshift.data.cifar import MEAN, STD
from tailshift.data.image_split import FileSplit
from tailshift.data.images import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ImageFiles,
    Preparation,
    load_image,
)
from tailshift.data.memory import Augmentation, MemorySplit, Normalisation

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
        lambda trial: rate(batch.labels for batch in ours.epoch(trial)),
        "torchvision",
        lambda trial: rate(labels for _, labels in theirs),
        trials,
    )


def bench_jpeg(num_images: int, workers: int, trials: int) -> float:
    """Return the share of a bare loop's speed that the file loader reaches."""
    with tempfile.TemporaryDirectory() as folder:
        images = write_jpegs(Path(folder), num_images)
        split = FileSplit(images, torch.zeros(num_images).long(), PREPARATION)
        options = {"batch_size": JPEG_BATCH, "training": True, "num_workers": workers}

        def ours(trial: int) -> None:
            loader = split.loader(**options)
            collections.deque(loader.epoch(trial), maxlen=0)

        def bare(trial: int) -> None:
            starts = range(0, num_images, JPEG_BATCH)
            with multiprocessing.Pool(workers, _start_bare, [images]) as pool:
                pool.map(_bare_batch, starts, chunksize=1)
                pool.close()
                pool.join()

        return median_ratio(
            "FileLoader",
            lambda trial: num_images / processor_time(ours, trial),
            "bare loop",
            lambda trial: num_images / processor_time(bare, trial),
            trials,
        )


def processor_time(work: Callable[[int], None], trial: int) -> float:
    """Return the seconds of this process and of those that `work` started and ended."""
    start, clock = sum(os.times()[:4]), time.perf_counter()
    work(trial)
    print(f"         {work.__name__}: {time.perf_counter() - clock:.2f} s by the clock")
    return sum(os.times()[:4]) - start


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


def _bare_batch(start: int) -> None:
    rows = range(start, min(start + JPEG_BATCH, len(_images)))
    batch = torch.empty(len(rows), 3, 224, 224)
    for row in rows:
        batch[row - start] = _normalise(_transform(load_image(_images, row)))


def rate(labels_of_batches: Iterable[Tensor]) -> float:
    """Return images a second of processor time: other work does not count."""
    start = time.process_time()
    num_images = sum(len(labels) for labels in labels_of_batches)
    return num_images / (time.process_time() - start)


def median_ratio(
    our_name: str,
    ours: Callable[[int], float],
    their_name: str,
    theirs: Callable[[int], float],
    trials: int,
) -> float:
    """Time both, in turn the first; print each trial, return the median ratio."""
    ratios: list[float] = []
    for trial in range(trials):
        if trial % 2:
            b, a = theirs(trial), ours(trial)
        else:
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
    parser.add_argument("--jpegs", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=9)
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
