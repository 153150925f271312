"""Take a data set of ImageNet-LT's size through the command line, and measure it.

Run ``make load`` or ``python benchmarks/load.py``. It writes 1,000 classes of small
JPEG files, 115,846 to train on (1,280 down to 5 a class) and 20 a class to test, and
sets of 10,000 and 30,000 of the same classes. Each goes through `data check`,
`features` (a small ResNet with random weights), `train`, `evaluate` and `report`, each
a process of its own. `results/load.csv` has a row for each, and `python docs/tables.py`
makes the table of it.

    python benchmarks/load.py --folder pictures --files 10000

``--folder`` keeps the images, so that another call begins with the commands. Memory is
the proportional set size (PSS) of the command and the processes that it started, looked
at twice a second, or the most that one of them had in between (VmHWM), if that is more:
a page that several share counts once, and pages of files that are mapped, such as
features, count as long as they are in memory. Processor time is of all of these
processes. The exit code is 1 if a command fails or takes 4 GB.
"""

import argparse
import csv
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from safetensors.torch import save_file

from tailshift.models import TimmBackbone
from tailshift.runs.directory import hardware, source_commit

RESULTS = Path(__file__).parents[1] / "results" / "load.csv"
NUM_CLASSES = 1000
FULL = 115_846
SIZES = (10_000, 30_000, FULL)
LARGEST, SMALLEST = 1280, 5
TESTED = 20
"""Images of a class to test, of the full size; the smaller sets have a share of it."""
NETWORK = "test_resnet"
MOST_MEGABYTES = 4000
LOOK_SECONDS = 0.5


def long_tailed_counts(total: int) -> list[int]:
    """Return the training images of each class, which sum to `total`.

    A Pareto profile, n_i = n_0 (1 + b i)^(−k), from n_0 down to 5; b is found by
    bisection, and what rounding leaves goes to the largest classes.
    """
    largest = round(LARGEST * total / FULL)
    ranks = np.arange(NUM_CLASSES)

    def profile(b: float) -> np.ndarray:
        k = np.log(largest / SMALLEST) / np.log1p(b * ranks[-1])
        return largest * (1 + b * ranks) ** -k

    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if profile(middle).sum() > total else (low, middle)
    counts = profile(high).round().astype(int)
    left = total - int(counts.sum())
    counts[1 : 1 + abs(left)] += np.sign(left)
    return counts.tolist()


def write_images(root: Path, total: int) -> None:
    """Write train/CLASS/*.jpg and test/CLASS/*.jpg, but for the classes there are."""
    counts = {
        "train": long_tailed_counts(total),
        "test": [round(TESTED * total / FULL)] * NUM_CLASSES,
    }
    for seed, (split, numbers) in enumerate(counts.items()):
        (root / split).mkdir(parents=True, exist_ok=True)
        for c, count in enumerate(track(numbers, f"{total:,} images: {split}")):
            folder = root / split / f"class{c:04}"
            if not folder.is_dir():
                write_class(folder, c, count, seed=seed)


def write_class(folder: Path, c: int, count: int, *, seed: int) -> None:
    """Write a class: a pattern of its own, under noise; all of it or nothing."""
    pattern = np.random.default_rng(c).integers(256, size=(4, 4, 3))
    rng = np.random.default_rng([seed, c])
    begun = folder.with_name(f".{folder.name}")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir()
    for number in range(count):
        pixels = rng.normal(pattern, 60).clip(0, 255).astype(np.uint8)
        width, height = rng.integers(40, 65, 2).tolist()
        image = Image.fromarray(pixels).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        image.save(begun / f"{number:05}.jpg", quality=85)
    begun.rename(folder)


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    clock_seconds: float
    processor_seconds: float
    peak_megabytes: float
    exit_code: int


def measure(command: list[str], log: Path) -> Cost:
    """Run a command in a session of its own, and return what it took."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    peak, is_over = 0.0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not is_over.wait(LOOK_SECONDS):
            peak = max(peak, session_megabytes(process.pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    process.wait()
    seconds = time.perf_counter() - began
    is_over.set()
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, used, peak, process.returncode)


def session_megabytes(session: int) -> float:
    """Return the memory of a session's processes, at least the most that one had."""
    together, most = 0, 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                together += kibibytes(process / "smaps_rollup", "Pss:")
                most = max(most, kibibytes(process / "status", "VmHWM:"))
        except OSError:  # it has ended
            continue
    return max(together, most) * 1024 / 1e6


def kibibytes(path: Path, key: str) -> int:
    """Return a value of one of the files of /proc; 0 if it is not there."""
    lines = path.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(key))


def commands(images: Path, work: Path, weights: Path) -> dict[str, list[str]]:
    """Return the arguments of each command, in order."""
    data, bank, run = f"folder:{images}", str(work / "bank"), str(work / "run")
    network = ["--model", f"timm:{NETWORK}", "--weights", str(weights)]
    method = ["--method", "balanced_softmax"]
    return {
        "data check": ["data", "check", data],
        "features": ["features", data, *network, "--image-size", "32", "-o", bank],
        "train": ["train", "--features", bank, *method, "--output", run],
        "evaluate": ["evaluate", run],
        "report": ["report", run, "-o", str(work / "report")],
    }


def load(total: int, folder: Path) -> tuple[list[dict[str, object]], bool]:
    """Take one size through all commands; return the rows, and whether all is well."""
    images, work = folder / f"images-{total}", folder / f"work-{total}"
    write_images(images, total)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    weights = work / "network.safetensors"
    torch.manual_seed(0)
    save_file(TimmBackbone(NETWORK).model.state_dict(), weights)
    rows: list[dict[str, object]] = []
    for name, arguments in commands(images, work, weights).items():
        log = work / f"{name.replace(' ', '-')}.log"
        cost = measure([sys.executable, "-m", "tailshift", *arguments], log)
        if cost.exit_code:
            print(f"{name}: exit code {cost.exit_code}\n{log.read_text()}")
            return rows, False
        rows.append(
            {
                "files": total,
                "classes": NUM_CLASSES,
                "command": name,
                "clock_seconds": f"{cost.clock_seconds:.1f}",
                "processor_seconds": f"{cost.processor_seconds:.1f}",
                "peak_megabytes": f"{cost.peak_megabytes:.0f}",
                "commit": source_commit(),
                "hardware": hardware(),
            }
        )
        print(*rows[-1].values(), sep=", ", flush=True)
        if cost.peak_megabytes >= MOST_MEGABYTES:
            print(f"{name}: more than {MOST_MEGABYTES} MB")
            return rows, False
    return rows, True


def keep(rows: list[dict[str, object]]) -> None:
    """Write rows to the results, in place of those of the same size."""
    new = {str(row["files"]) for row in rows}
    old: list[dict[str, str]] = []
    if RESULTS.is_file():
        with RESULTS.open(encoding="utf-8", newline="") as file:
            old = [row for row in csv.DictReader(file) if row["files"] not in new]
    together = sorted([*old, *rows], key=lambda row: int(str(row["files"])))
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(together)


def main() -> int:
    """Take each size through the commands."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="keeps images, and what is made")
    parser.add_argument("--files", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for total in options.files:
            rows, is_well = load(total, folder)
            if rows:
                keep(rows)
            if not is_well:
                return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
