"""Time and memory of the whole table of shifted targets with calibration metrics.

Run with::

    python benchmarks/bench_evaluation.py

Seven methods × eleven targets at the size of ImageNet-LT: each method's test logits,
50,000 × 1000 in half precision, lie in a file of their own and are memory-mapped. For
each method and target the raw and the compensated logits get accuracy, accuracy of the
groups, top-5, macro-F1, both calibration errors, Brier score and NLL. The time is also
given as a multiple of one softmax over the same files, read the same way; memory is
the most that the process had in use. ``--scale 0.1`` takes a tenth of the samples.
"""

import argparse
import resource
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path

import torch

from tailshift import priors
from tailshift.evaluation import Record, evaluate
from tailshift.metrics.sample_scores import row_slices
from tailshift.predictions import Predictions
from tailshift.priors import read_counts

NUM_METHODS, NUM_CLASSES, PER_CLASS = 7, 1000, 50


def write_files(folder: Path, per_class: int) -> list[Path]:
    """Write one file of logits a method, every other one carrying the source prior."""
    file = resources.files("tailshift") / "data/counts/imagenet_lt_train_counts.txt"
    counts = read_counts(Path(str(file)))
    labels = torch.arange(NUM_CLASSES).repeat_interleave(per_class)
    paths = []
    for method in range(NUM_METHODS):
        generator = torch.Generator().manual_seed(method)
        logits = torch.empty(len(labels), NUM_CLASSES, dtype=torch.float16)
        source, uniform = priors.from_counts(counts), priors.uniform(NUM_CLASSES)
        prior = source if method % 2 else uniform
        for rows in row_slices(*logits.shape):
            f = 1.5 * torch.randn(logits[rows].shape, generator=generator)
            f[torch.arange(len(f)), labels[rows]] += 6.0
            logits[rows] = (f + prior.log()).half()
        path = folder / f"method{method}.safetensors"
        Predictions(logits, labels, counts, prior).save(path)
        paths.append(path)
    return paths


def softmax_all(paths: list[Path]) -> float:
    """Return the sum of the highest probabilities; one softmax over every file."""
    total = 0.0
    for path in paths:
        logits = Predictions.load(path).logits
        for rows in row_slices(*logits.shape):
            total += logits[rows].float().softmax(dim=1).amax(dim=1).sum().item()
    return total


def evaluate_all(paths: list[Path]) -> list[list[Record]]:
    """Return the records of every file on the paper's targets."""
    return [evaluate(Predictions.load(path)) for path in paths]


def peak_memory() -> float:
    """Return the most memory that the process had in use so far, in gigabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def main() -> None:
    """Print the time of the softmax, of the table, their ratio and the memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    per_class = round(PER_CLASS * parser.parse_args().scale)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{NUM_METHODS} methods, N = {NUM_CLASSES * per_class}, C = {NUM_CLASSES}, "
        "float16"
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder), per_class)
        evaluate_all(paths[:1])  # warms up
        start = time.perf_counter()
        softmax_all(paths)
        softmax_seconds = time.perf_counter() - start
        start = time.perf_counter()
        records = evaluate_all(paths)
        seconds = time.perf_counter() - start
    assert all(record.classwise_ece > 0 for found in records for record in found)
    print(f"softmax {softmax_seconds:.1f} s")
    print(f"table {seconds:.1f} s, {seconds / softmax_seconds:.1f} × softmax")
    print(f"peak memory {peak_memory():.2f} GB")


if __name__ == "__main__":
    main()
