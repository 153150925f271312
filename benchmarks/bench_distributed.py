"""Images per second in one and two processes, and what LADE's reduction adds to a step.

Run with::

    python benchmarks/bench_distributed.py

The first table is the last epoch of LADE on the digits, on the CPU, with one thread for
each process.

The second is of two processes that share a batch of 256: forward and backward of LADE
over both, beside half of what one process takes for the whole batch, and an all-reduce
of three vectors of C numbers (gloo), the fastest of many repeats that take turns, in
milliseconds of the clock. The last column is what sharing adds, divided by what it is
meant to: the all-reduce and 5 % of the loss's own time. On a machine with other work
the processes wait for each other, and it says nothing.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from tailshift import load, load_recipe, priors, train
from tailshift.losses import LADELoss, Processes

NUM_SAMPLES = 256
REPEATS = {1000: 400, 8142: 200}  # number of classes: repeats
EPOCHS = 5


def main() -> None:
    """Start the processes and print both tables."""
    print(f"torch {torch.__version__}, gloo, {os.cpu_count()} cores, float32")
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'processes':>9}{'images/s':>10}")
        for world_size in (1, 2):
            start("train", world_size, folder)
            metrics = load(Path(folder) / f"run-{world_size}").metrics
            print(f"{world_size:>9}{metrics[-1]['images_per_second']:>10.0f}")
        start("reduce", 2, folder)


def start(task: str, world_size: int, folder: str) -> None:
    """Run this file in so many processes, as torchrun would."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(world_size), __file__, task, folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True)


def train_digits(folder: str) -> None:
    """Train a few epochs, in as many processes as were started."""
    settings = [f"train.epochs={EPOCHS}", "method.name=lade", "train.accelerator=cpu"]
    output = Path(folder) / f"run-{os.environ['WORLD_SIZE']}"
    train(load_recipe("digits_lt", settings), output=output)


def compare_reductions() -> None:
    """Print one line for each number of classes, in the first of two processes."""
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), Processes(2, max_samples=NUM_SAMPLES // 2)
    torch.manual_seed(rank)
    if rank == 0:
        columns = ("half", "shared", "all-reduce", "added/meant")
        print(f"{'C':>5}" + "".join(f"{name:>13}" for name in columns), flush=True)
    for num_classes, repeats in REPEATS.items():
        whole, shared, reduced = compare(num_classes, repeats, processes)
        half = whole / 2
        ratio = (shared - half) / (reduced + 0.05 * half)
        if rank == 0:
            found = (half, shared, reduced)
            times = "".join(f"{1e3 * value:>13.3f}" for value in found)
            print(f"{num_classes:>5}{times}{ratio:>13.2f}", flush=True)
    dist.destroy_process_group()


def compare(num_classes: int, repeats: int, processes: Processes) -> list[float]:
    """Return the seconds of LADE in one process, in two, and of an all-reduce."""
    p_s = priors.from_counts(priors.long_tailed_counts(1280, 256, num_classes))
    labels = torch.multinomial(p_s, NUM_SAMPLES, replacement=True)
    logits = torch.randn(NUM_SAMPLES, num_classes, requires_grad=True)
    half = logits.detach()[: NUM_SAMPLES // 2].clone().requires_grad_()
    loss, vectors = LADELoss(p_s, alpha=0.1, lam=0.01), torch.ones(3, num_classes)

    def in_one() -> None:
        logits.grad = None
        loss(logits, labels).backward()

    def in_two() -> None:
        half.grad = None
        loss.over_processes(half, labels[: len(half)], processes).backward()

    return fastest_times([in_one, in_two, lambda: dist.all_reduce(vectors)], repeats)


def fastest_times(tasks: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return each task's shortest time in seconds; all processes begin it together."""
    times: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeats):
        for task, found in zip(tasks, times, strict=True):
            dist.barrier()
            begin = time.perf_counter()
            task()
            found.append(time.perf_counter() - begin)
    return [min(values) for values in times]


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "train":
        train_digits(sys.argv[2])
    else:
        compare_reductions()
