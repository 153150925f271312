"""Images per second in one and two processes, and what LADE's reduction adds to a step.

Run with::

    python benchmarks/bench_distributed.py

The first table is the last epoch of LADE on the digits, on the CPU, with one thread for
each process.

The second is of two processes (gloo) that share a batch of 256: LADE forward and
backward of each one's part alone, as plain data-parallel training has it, then over
both, and beside them an all-reduce of three vectors of C numbers. Every task ends in
the all-reduce of one number, where the processes meet as they do at the end of a step;
what that takes alone is taken off. Medians of many rounds, in milliseconds of the
clock, and of what is added within a round. The last column is what sharing adds,
divided by what it may: the all-reduce and 5 % of the loss's own time. On a machine with
other work the processes wait for each other, and it says nothing.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from tailshift import load_recipe, load_run, priors, train
from tailshift.losses import LADELoss, Processes

NUM_SAMPLES = 256
ROUNDS = {1000: 2000, 8142: 500}  # by the number of classes
EPOCHS = 5


def main() -> None:
    """Start the processes and print both tables."""
    print(f"torch {torch.__version__}, gloo, {os.cpu_count()} cores, float32")
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'processes':>9}{'images/s':>10}")
        for world_size in (1, 2):
            start("train", world_size, folder)
            metrics = load_run(Path(folder) / f"run-{world_size}").metrics
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
    rank = dist.get_rank()
    torch.manual_seed(rank)
    if rank == 0:
        columns = ("alone", "shared", "all-reduce", "added/may")
        print(f"{'C':>5}" + "".join(f"{name:>12}" for name in columns), flush=True)
    for num_classes, rounds in ROUNDS.items():
        nothing, alone, shared, reduced = compare(num_classes, rounds).unbind(1)
        found = [(task - nothing).median().item() for task in (alone, shared, reduced)]
        added = (shared - alone).median().item()
        ratio = added / (found[2] + 0.05 * found[0])
        if rank == 0:
            times = "".join(f"{1e3 * value:>12.3f}" for value in found)
            print(f"{num_classes:>5}{times}{ratio:>12.2f}", flush=True)
    dist.destroy_process_group()


def compare(num_classes: int, rounds: int) -> torch.Tensor:
    """Return seconds (rounds, 4): of nothing, LADE alone, shared, and an all-reduce."""
    p_s = priors.from_counts(priors.long_tailed_counts(1280, 256, num_classes))
    labels = torch.multinomial(p_s, NUM_SAMPLES // 2, replacement=True)
    logits = torch.randn(len(labels), num_classes, requires_grad=True)
    loss, vectors = LADELoss(p_s, alpha=0.1, lam=0.01), torch.ones(3, num_classes)
    processes = Processes(2, max_samples=len(labels))
    processes = processes.knowing(labels, processes.labels(labels))  # as in training

    def alone() -> None:
        logits.grad = None
        loss(logits, labels).backward()

    def shared() -> None:
        logits.grad = None
        loss.over_processes(logits, labels, processes).backward()

    tasks = (lambda: None, alone, shared, lambda: dist.all_reduce(vectors))
    return times_in_turn(tasks, rounds)


def times_in_turn(tasks: Sequence[Callable[[], object]], rounds: int) -> torch.Tensor:
    """Return the seconds of each task in each round; all processes begin it together.

    The first tenth is thrown away.
    """
    times, met = torch.empty(rounds, len(tasks), dtype=torch.float64), torch.zeros(1)
    for this_round in times:
        for number, task in enumerate(tasks):
            dist.barrier()
            begin = time.perf_counter()
            task()
            dist.all_reduce(met)
            this_round[number] = time.perf_counter() - begin
    return times[rounds // 10 :]


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "train":
        train_digits(sys.argv[2])
    else:
        compare_reductions()
