"""Features of images, and heads fitted to them, against what one would write oneself.

First images per second of a network whose features are kept (EfficientNet-Lite0 at 128
pixels with random weights; the time is the same), over JPEG files of 160 to 400 pixels:

- ``plain``: ``ImageFolder`` in a ``DataLoader`` with two workers, torchvision's resize,
  crop and normalisation, ``torch.no_grad()``, float32, contiguous;
- ``bank``: what `tailshift features` does: batch statistics folded into the
  convolutions, channels-last, float32, decoding in workers.

One thread, in turn, a few batches a round, by the processor time of all processes,
which other work hardly touches; the ratio is the median of those within a round.

Then the linear head of Balanced Softmax and of LADE, fitted by L-BFGS to as many
features as ImageNet-LT has images, 115,846 × 768 of 1000 classes (normal, around class
means, imbalance ratio 256), until it has converged: processor minutes, the same over
two cores, and the most memory that a process of its own took.

    python benchmarks/bench_features.py
    python benchmarks/bench_features.py --small

``--small`` takes fewer images and a twentieth of the samples and classes. The exit code
is 1 below an aim. Measured on an AMD EPYC, one core: ``bank`` has 2.26 times the images
per second of ``plain``; Balanced Softmax 2.0 processor minutes and 1.5 GB, LADE 3.4 and
1.7 GB.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_training import median_ratio, processor_time
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from tailshift import priors
from tailshift.config import ModelConfig
from tailshift.data import LongTailedData
from tailshift.data.feature_split import FeatureSplit
from tailshift.data.own_forms import ImageFolder
from tailshift.losses import BalancedSoftmaxLoss, LADELoss
from tailshift.models import LinearHead
from tailshift.runs.network import build_model_backbone
from tailshift.training.extraction import prepared
from tailshift.training.extraction_network import embed, folded
from tailshift.training.extraction_work import BATCH
from tailshift.training.head_fit import FULL_STEPS
from tailshift.training.head_problem import HeadProblem, Samples

RATIO_AIM = 1.5
MINUTES_AIM, GIGABYTES_AIM, LADE_AIM = 6.0, 3.0, 2.0
SIZE = 128
DECAY = 0.01
FULL, SMALL = (115_846, 768, 1000), (5_792, 768, 50)
"""Samples, features and classes."""

Batches = Callable[[int], None]
"""Takes so many batches through the network."""


def write_photos(folder: Path, count: int) -> None:
    """Write smooth JPEG files of two classes."""
    rng = np.random.default_rng(0)
    for number in range(count):
        width, height = rng.integers(160, 400, 2)
        small = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        path = folder / f"class{number % 2}" / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        photo = Image.fromarray(small).resize((int(width), int(height)), Image.BICUBIC)
        photo.save(path, quality=90)


def plain(folder: Path, backbone: torch.nn.Module) -> Batches:
    """Return the loop that one would write oneself."""
    transform = transforms.Compose(
        [
            transforms.Resize(SIZE),
            transforms.CenterCrop(SIZE),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.5,) * 3),
        ]
    )
    images = datasets.ImageFolder(folder, transform)
    loader = DataLoader(images, BATCH, num_workers=2, persistent_workers=True)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def run(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                backbone(next(batches)[0]).numpy()

    return run


def bank(data: LongTailedData, backbone: Any) -> Batches:
    """Return what fills a bank."""
    loader = data.train.loader(batch_size=BATCH, training=False, num_workers=2)

    def endless() -> Iterator[Any]:
        with closing(loader):
            while True:
                yield from loader.epoch(0, 0)

    batches = endless()

    def run(count: int) -> None:
        for _ in range(count):
            embed(backbone, next(batches).images)

    return run


def compare_extraction(num_images: int, rounds: int, count: int) -> bool:
    """Print images per second of both ways; return whether the aim is reached."""
    name = "timm:tf_efficientnet_lite0"
    model = ModelConfig(name=name, pretrained=False, image_size=SIZE)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_photos(folder, num_images)
        data = ImageFolder(path=path, image_size=SIZE).load(root=None, seed=0)
        data = prepared(data, model)
        backbones = [
            build_model_backbone(model, image_size=SIZE).eval() for _ in range(2)
        ]
        network = folded(backbones[1], SIZE).to(memory_format=torch.channels_last)
        ways = {
            "plain": plain(folder, backbones[0]),
            "bank": bank(data, network),
        }
        for run in ways.values():
            run(2)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way in list(ways)[:: 1 if number % 2 else -1]:
                start = processor_time()
                ways[way](count)
                seconds[way].append((processor_time() - start) / count)
    ratio = median_ratio(seconds["plain"], seconds["bank"])
    for way, times in seconds.items():
        print(f"{way:<8}{BATCH / statistics.median(times):>8.0f} images/s")
    print(f"ratio {ratio:.2f} (aim: {RATIO_AIM:g})", flush=True)
    return ratio >= RATIO_AIM


def long_tailed(
    num_samples: int, dim: int, num_classes: int
) -> tuple[FeatureSplit, Tensor]:
    """Return half-precision features around class means, and the class counts."""
    generator = torch.Generator().manual_seed(0)
    profile = 256.0 ** (-torch.arange(num_classes) / (num_classes - 1))
    counts = (profile / profile.sum() * num_samples).round().clamp_min(2).long()
    labels = torch.arange(num_classes).repeat_interleave(counts)
    means = torch.randn(num_classes, dim, generator=generator) / 4
    features = torch.empty(1, len(labels), dim, dtype=torch.float16)
    for rows in torch.split(torch.arange(len(labels)), 8192):
        noise = torch.randn(len(rows), dim, generator=generator)
        features[0, rows] = (means[labels[rows]] + noise).half()
    return FeatureSplit(features, labels), counts


def fit_alone(method: str, shape: tuple[int, int, int]) -> None:
    """Print what the fit of one method takes, as JSON."""
    split, counts = long_tailed(*shape)
    p_s = priors.from_counts(counts)
    loss = {
        "balanced_softmax": BalancedSoftmaxLoss(p_s),
        "lade": LADELoss(p_s, alpha=0.1, lam=0.01),
    }[method]
    head, rows = LinearHead(shape[1], shape[2]), torch.arange(len(split))
    start, clock = time.process_time(), time.perf_counter()
    problem = HeadProblem(head, loss, Samples(split, rows, shape[2]))
    reached = problem.solve(DECAY, FULL_STEPS)
    found = {
        "minutes": (time.process_time() - start) / 60,
        "clock": (time.perf_counter() - clock) / 60,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": reached,
    }
    print(json.dumps(found))


def compare_fits(shape: tuple[int, int, int], is_small: bool) -> bool:
    """Print a line for each method; return whether all aims are reached."""
    minutes, reached = {}, True
    print(
        f"{'':<18}{'cpu min':>8}{'/ 2 cores':>10}{'clock min':>10}{'GB':>6}{'loss':>9}"
    )
    for method in ("balanced_softmax", "lade"):
        command = [sys.executable, __file__, "--fit", method]
        command += ["--small"] if is_small else []
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        found = json.loads(output)
        minutes[method] = found["minutes"]
        print(
            f"{method:<18}{found['minutes']:>8.2f}{found['minutes'] / 2:>10.2f}"
            f"{found['clock']:>10.2f}{found['gigabytes']:>6.2f}{found['loss']:>9.4f}",
            flush=True,
        )
        reached &= found["gigabytes"] < GIGABYTES_AIM
    ratio = minutes["lade"] / minutes["balanced_softmax"]
    print(f"LADE takes {ratio:.2f} times as long (aim: at most {LADE_AIM:g})")
    is_fast = minutes["balanced_softmax"] / 2 < MINUTES_AIM
    return reached and is_fast and ratio <= LADE_AIM


def main() -> int:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fit", choices=["balanced_softmax", "lade"])
    options = parser.parse_args()
    shape = SMALL if options.small else FULL
    if options.fit:
        torch.set_num_threads(2)
        fit_alone(options.fit, shape)
        return 0
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    num_images, count = (128, 1) if options.small else (512, 4)
    is_reached = compare_extraction(num_images, options.rounds, count)
    return 0 if compare_fits(shape, options.small) and is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
