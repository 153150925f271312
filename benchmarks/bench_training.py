"""Images per second of training steps, against the loop that one would write oneself.

The quick CIFAR-100-LT recipe (ResNet-32 with two branches, batches of 128), with
Softmax and LADE, three times:

- ``by hand``: torchvision's transforms (crop with padding 4, flip, to tensor,
  normalise) of PIL images in a ``DataLoader`` with two workers, the same network and
  loss, float32, contiguous;
- ``float32``: the steps of ``tailshift train`` with ``train.precision=32-true``;
- ``auto``: the same with ``train.precision=auto``, bf16 if the hardware has it.

One thread each, in turn, a few steps a round; the table has the medians of all rounds,
by the processor time of all processes, which other work hardly touches. The ratios are
medians of those within a round. What LADE adds to a step is the difference of the two
losses alone, forward and backward, which is far below what steps differ by. Then the
clock: one process with two threads against two with one thread each, side by side.

    python benchmarks/bench_training.py
    python benchmarks/bench_training.py --digits

``--data-root DIR`` takes the real images; the time is the same. ``--digits`` trains
the digits in both precisions instead, and prints what bf16 changes. The exit code is 1
below an aim.
"""

import argparse
import itertools
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from tailshift import RunConfig, evaluate, load_recipe, train
from tailshift.data import LongTailedData
from tailshift.data.cifar import MEAN, STD
from tailshift.data.memory import Augmentation, MemorySplit
from tailshift.training.build import build_loss, build_optimizer, build_trainer
from tailshift.training.distributed import build_fabric, machine_precision
from tailshift.training.resolve import new_model
from tailshift.workers import StopRequest

METHODS = ("softmax", "lade")
BY_HAND, FLOAT32, AUTO = "by hand", "float32", "auto"
AIMS = {FLOAT32: 1.2, AUTO: 1.8 if machine_precision("cpu") == "bf16-mixed" else 1.2}
LADE_AIM = 0.03
WARM_UP = 2
Steps = Callable[[int], None]
"""Trains so many steps."""


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


def configuration(method: str, *settings: str) -> RunConfig:
    """Return the quick recipe of a method, on the CPU."""
    recipe = f"cifar100_lt_ir100_{method}_quick"
    return load_recipe(recipe, ["train.accelerator=cpu", *settings])


def load_data(root: Path | None) -> LongTailedData:
    """Return CIFAR-100-LT, or noise of its shape and counts without a folder."""
    dataset = configuration("softmax").data
    if root is not None:
        return dataset.load(root=root, seed=0)
    counts = dataset.known_shape().class_counts
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    pixels = torch.randint(256, (len(labels), 3, 32, 32), dtype=torch.uint8)
    augmentation = Augmentation(padding=4, flip=True)
    split = MemorySplit(pixels, labels, MEAN, STD, augmentation)
    names = tuple(map(str, range(len(counts))))
    return LongTailedData("noise", split, None, split, names, "noise")


def by_hand(method: str, data: LongTailedData) -> Steps:
    """Return the loop that one would write oneself."""
    config = configuration(method, "train.channels_last=false")
    stage, model = config.method.stages()[0], new_model(config, data)
    loss_function = build_loss(config, data.class_counts, stage)
    optimizer = build_optimizer(config, model, stage)
    batches = endless(PILImages(data.train), config.train.batch_size)

    def steps(count: int) -> None:
        for images, labels in itertools.islice(batches, count):
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

    return steps


def endless(
    images: Dataset[tuple[Tensor, int]], batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled batches; two workers stay ahead by as many as usual."""
    loader = DataLoader(
        images, batch_size, shuffle=True, num_workers=2, persistent_workers=True
    )
    while True:
        yield from loader


def ours(method: str, precision: str, data: LongTailedData) -> Steps:
    """Return the steps of `tailshift train`."""
    config = configuration(method, f"train.precision={precision}")
    fabric = build_fabric(config)
    trainer = build_trainer(config, data, new_model(config, data), fabric)

    def steps(count: int) -> None:
        stop, left = StopRequest(), itertools.count(count - 1, -1)

        def log(*step: object) -> None:
            stop.is_set = next(left) == 0

        trainer.fit(on_epoch=lambda metrics: None, stop=stop, log=log)

    return steps


def processor_time() -> float:
    """Return the seconds of this process and of its workers."""
    ticks = 0
    for worker in multiprocessing.active_children():
        stat = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(stat[11]) + int(stat[12])  # in user mode, in the kernel
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def compare(
    data: LongTailedData, rounds: int, count: int
) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of a step in each round, by way and method."""
    contenders: dict[tuple[str, str], Steps] = {}
    for method in METHODS:
        contenders[BY_HAND, method] = by_hand(method, data)
        contenders[FLOAT32, method] = ours(method, "32-true", data)
        contenders[AUTO, method] = ours(method, "auto", data)
    for steps in contenders.values():
        steps(WARM_UP)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in contenders}
    for number in range(rounds):
        order = list(contenders) if number % 2 else list(contenders)[::-1]
        for key in order:
            start = processor_time()
            contenders[key](count)
            seconds[key].append((processor_time() - start) / count)
    return seconds


def report(seconds: dict[tuple[str, str], list[float]], batch_size: int) -> bool:
    """Print a line for each way; return whether all aims are reached."""
    reached = True
    print(f"{'images/s':<10}" + "".join(f"{m:>10}{'ratio':>8}" for m in METHODS))
    for way in (BY_HAND, FLOAT32, AUTO):
        line = f"{way:<10}"
        for method in METHODS:
            ratio = median_ratio(seconds[BY_HAND, method], seconds[way, method])
            rate = batch_size / statistics.median(seconds[way, method])
            line += f"{rate:>10.0f}{ratio:>8.2f}"
            reached &= ratio >= AIMS.get(way, 0.0)
        print(line + (f"   (aim: {AIMS[way]:g})" if way in AIMS else ""))
    step, (softmax, lade) = statistics.median(seconds[AUTO, "softmax"]), loss_times()
    added = (lade - softmax) / step
    print(f"LADE adds {added:.2%} to a step of {AUTO} (aim: below {LADE_AIM:.0%})")
    return reached and added <= LADE_AIM


def loss_times(rounds: int = 400) -> list[float]:
    """Return the median seconds of each method's loss, forward and backward."""
    counts = configuration("softmax").data.known_shape().class_counts
    batch_size = configuration("softmax").train.batch_size
    labels = torch.multinomial(counts.double(), batch_size, replacement=True)
    logits = torch.randn(batch_size, len(counts), requires_grad=True)
    times: list[list[float]] = [[] for _ in METHODS]
    configs = [configuration(method) for method in METHODS]
    losses = [build_loss(c, counts, c.method.stages()[0]) for c in configs]
    for _ in range(rounds):
        for loss, seconds in zip(losses, times, strict=True):
            logits.grad = None
            start = time.process_time()
            loss(logits, labels).backward()
            seconds.append(time.process_time() - start)
    return [statistics.median(seconds) for seconds in times]


def median_ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def side_by_side(count: int) -> None:
    """Print what two processes of one thread reach beside one of two threads."""
    rates = {}
    for num_processes, threads in ((1, 2), (2, 1)):
        command = [sys.executable, __file__, "--steps", str(count)]
        command += ["--threads", str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        processes = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            for _ in range(num_processes)
        ]
        outputs = [process.communicate()[0] for process in processes]
        rates[num_processes] = sum(float(output.split()[-1]) for output in outputs)
    print(
        f"by the clock: one process of two threads {rates[1]:.0f} images/s, two of one "
        f"{rates[2]:.0f}, {rates[2] / rates[1]:.2f} times as many"
    )


def time_alone(count: int, threads: int) -> None:
    """Print the images a second of this process, by the clock."""
    torch.set_num_threads(threads)
    steps = ours("lade", "auto", load_data(None))
    steps(WARM_UP)
    start = time.perf_counter()
    steps(count)
    batch_size = configuration("lade").train.batch_size
    print(count * batch_size / (time.perf_counter() - start))


def compare_digits(seeds: int) -> None:
    """Print the accuracy of the digits in float32 and in bf16, and the difference."""
    print(f"{'method':<10}{'seed':>5}{'float32':>9}{'bf16':>9}{'difference':>12}")
    for method in METHODS:
        differences = []
        for seed in range(seeds):
            found = [
                digits_accuracy(method, seed, precision)
                for precision in ("32-true", "bf16-mixed")
            ]
            differences.append(found[1] - found[0])
            numbers = "".join(f"{value:>9.2f}" for value in found)
            print(f"{method:<10}{seed:>5}{numbers}{differences[-1]:>+12.2f}")
        print(f"{method:<10} mean{statistics.mean(differences):>+30.2f}", flush=True)


def digits_accuracy(method: str, seed: int, precision: str) -> float:
    """Return the percent right on balanced classes, compensated."""
    settings = (f"method.name={method}", f"seed={seed}", f"train.precision={precision}")
    with tempfile.TemporaryDirectory() as folder:
        config = load_recipe("digits_lt", [*settings, "train.accelerator=cpu"])
        run = train(config, output=Path(folder) / "run")
        records = evaluate(run.predictions(), ["uniform"])
    return 100 * next(r.accuracy for r in records if r.compensated)


def main() -> int:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="steps of a round")
    parser.add_argument("--threads", type=int, help="time one process alone")
    parser.add_argument("--digits", action="store_true")
    options = parser.parse_args()
    if options.threads:
        time_alone(options.steps, options.threads)
        return 0
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    if options.digits:
        compare_digits(seeds=3)
        return 0
    data = load_data(options.data_root)
    batch_size = configuration("softmax").train.batch_size
    is_reached = report(compare(data, options.rounds, options.steps), batch_size)
    side_by_side(5 * options.steps)
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
