"""Rows per CPU second from Parquet to Parquet, next to a NumPy one-liner.

    python benchmarks/bench_retarget.py [ROWS]

The one-liner reads, multiplies by the prior ratio, normalises and writes with pyarrow.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tailshift as ts

CLASSES = (10, 100, 1000)
ELEMENTS = 10_000_000  # rows times classes


def write_predictions(path: Path, num_rows: int, num_classes: int) -> None:
    """Write random probabilities, 100,000 rows at most at a time."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, num_rows, step := max(1, 10_000_000 // num_classes)):
        n = min(step, num_rows - start)
        p = rng.random((n, num_classes))
        p /= p.sum(axis=1, keepdims=True)
        columns = {"image": np.arange(start, start + n).astype(str)}
        columns |= {f"c{c}": p[:, c] for c in range(num_classes)}
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def plain_numpy(source: Path, output: Path, ratio: np.ndarray) -> None:
    """Re-target all at once."""
    table = pq.read_table(source, use_threads=False)
    names = table.column_names[1:]
    p = np.stack([table[name].to_numpy() for name in names], axis=1) * ratio
    p /= p.sum(axis=1, keepdims=True)
    columns = [pa.array(p[:, c]) for c in range(len(names))]
    pq.write_table(pa.table([table["image"], *columns], table.column_names), output)


def retarget_table(source: Path, output: Path, ratio: np.ndarray) -> None:
    """Re-target chunk by chunk."""
    ts.retarget(source, output, target=ratio / ratio.sum(), force=True)


def cpu_seconds(function: Callable[..., None], *arguments: object) -> float:
    """Return the CPU time of a call."""
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def main() -> None:
    """Print a row for each number of classes."""
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else None
    ts.retarget(np.full((2, 2), 0.5), target="uniform")  # imports are not counted
    print("classes rows rows_per_cpu_second numpy_rows_per_cpu_second ratio peak_mb")
    for num_classes in CLASSES if asked is None else (100,):
        num_rows = asked or ELEMENTS // num_classes
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder, "in.parquet"), Path(folder, "out.parquet")
            write_predictions(source, num_rows, num_classes)
            ratio = np.random.default_rng(1).dirichlet(np.ones(num_classes))
            ours = num_rows / cpu_seconds(retarget_table, source, out, ratio)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            other = np.nan
            if asked is None:
                other = num_rows / cpu_seconds(plain_numpy, source, out, ratio)
        figures = f"{ours:.0f} {other:.0f} {ours / other:.2f} {peak}"
        print(num_classes, num_rows, figures, flush=True)


if __name__ == "__main__":
    main()
