"""Measure the estimators on kept CIFAR-100-LT logits, for ``docs/estimation.md``.

Run ``python docs/estimation.py`` (about ten minutes on one core); it prints progress,
writes ``results/estimation.csv`` and fills the tables of ``docs/estimation.md`` from
it. ``--tables`` only fills the tables, ``--draws 1`` is a quick look.

Each draw splits each class's 100 test images at random 30/70. The 30 are thinned by the
source prior, at least one per class, to be the labelled held-out set; the 70 are
thinned to each target, and are what is estimated from, without labels, and scored on.
"""

import argparse
import csv
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from tailshift import Predictions, post_compensate, priors
from tailshift.estimators import (
    BBSEEstimator,
    EMEstimator,
    FewSamplesWarning,
    RLLSEstimator,
    TiltEstimator,
    adapt,
)

ROOT = Path(__file__).parents[1]
LOGITS = ROOT / "results" / "v0_1" / "logits"
RESULTS = ROOT / "results" / "estimation.csv"
DOCUMENT = ROOT / "docs" / "estimation.md"
RUNS = {
    "Softmax": "cifar100_lt_ir100_softmax_quick-seed0",
    "Balanced Softmax": "cifar100_lt_ir100_balanced_softmax_quick-seed0",
    "LADE": "cifar100_lt_ir100_lade_quick-paper-seed0",
}
ESTIMATORS = {
    "EM": EMEstimator,
    "BBSE": BBSEEstimator,
    "RLLS": RLLSEstimator,
    "tilt": TiltEstimator,
}
Row = dict[str, str | int | float]

HELD_OUT, TARGET = 30, 70
KNOCKED_OUT = 20
TARGETS = (*priors.PAPER_TARGETS, "permuted 50", "knock-out")


def split(
    labels: Tensor, counts: Tensor, generator: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """Return the held-out samples, and the 70 of each class that targets draw from."""
    held_out, pool = [], []
    for c, count in enumerate(counts.tolist()):
        own = (labels == c).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=generator)]
        held_out.append(own[: max(1, round(HELD_OUT * count / int(counts.max())))])
        pool.append(own[HELD_OUT:])
    return torch.cat(held_out), pool


def target_counts(target: str, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Return how many samples of each class a target has."""
    num_classes = len(counts)
    if target == "permuted 50":
        order = counts[torch.randperm(num_classes, generator=generator)]
        return priors.target_counts("forward:50", order, TARGET)
    if target == "knock-out":
        kept = priors.target_counts("uniform", counts, TARGET)
        kept[torch.randperm(num_classes, generator=generator)[:KNOCKED_OUT]] = 0
        return kept
    return priors.target_counts(target, counts, TARGET)


def measure(name: str, draw: int) -> Iterator[Row]:
    """Yield a row for each target and column of the table."""
    predictions = Predictions.load(LOGITS / f"{RUNS[name]}.safetensors")
    f, y = predictions.logits.float(), predictions.labels
    counts, trained = predictions.source_counts, predictions.trained_prior
    p_s = priors.from_counts(counts)
    generator = torch.Generator().manual_seed(draw)
    held_out, pool = split(y, counts, generator)
    fitted = {
        column: estimator(trained_prior=trained, source_prior=p_s)
        for column, estimator in ESTIMATORS.items()
    }
    for estimator in fitted.values():
        estimator.fit(f[held_out], y[held_out])
    known = Predictions(f[held_out], y[held_out], counts, trained)
    for target in TARGETS:
        n = target_counts(target, counts, generator)
        chosen = torch.cat([own[:k] for own, k in zip(pool, n, strict=True)])
        x = f[chosen]
        adapted = adapt(known, x)
        found = {
            "raw": trained,
            "none": p_s,
            "uniform": priors.uniform(len(p_s)),
            **{column: e.estimate(x) for column, e in fitted.items()},
            "MAP": adapted.estimated_prior,
            "adapt": adapted.target_prior,
            "oracle": priors.from_counts(n),
        }
        for column, q in found.items():
            answer = post_compensate(x, trained_prior=trained, target_prior=q)
            right = (answer.argmax(1) == y[chosen]).double().mean().item()
            yield {
                "method": name,
                "draw": draw,
                "held_out": len(held_out),
                "target": target,
                "num_samples": len(chosen),
                "column": column,
                "accuracy": round(100 * right, 3),
                "l1": round((q - found["oracle"]).abs().sum().item(), 4),
            }
    sys.stderr.write(f"{name}: draw {draw}\n")


def table(rows: list[dict[str, str]], quantity: str) -> str:
    """Return targets down and columns across, means over draws."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row["target"]][row["column"]].append(float(row[quantity]))
    columns = list(next(iter(cells.values())))
    if rows[0]["method"] == "Softmax":
        columns.remove("raw")  # is "none"
    lines = [
        "| target | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    digits = 1 if quantity == "accuracy" else 2
    for target, by in cells.items():
        means = [f"{fmean(by[column]):.{digits}f}" for column in columns]
        lines.append(f"| {target.replace(':', ' ')} | " + " | ".join(means) + " |")
    return "\n".join(lines)


def fill() -> None:
    """Write the tables between the markers of the document."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in RUNS:
        own = [row for row in rows if row["method"] == name]
        for quantity in ("accuracy", "l1"):
            marker = f"{name} {quantity}"
            text = re.sub(
                rf"(<!-- {marker}: begin -->\n).*?(<!-- {marker}: end -->)",
                lambda match, own=own, quantity=quantity: (
                    f"{match[1]}\n{table(own, quantity)}\n\n{match[2]}"
                ),
                text,
                flags=re.DOTALL,
            )
    DOCUMENT.write_text(text, encoding="utf-8")


def main() -> None:
    """Measure, keep and fill."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--tables", action="store_true", help="only fill the tables")
    arguments = parser.parse_args()
    if not arguments.tables:
        # One held-out sample of a class is what this protocol is about.
        warnings.simplefilter("ignore", FewSamplesWarning)
        rows = [
            row
            for name in RUNS
            for draw in range(arguments.draws)
            for row in measure(name, draw)
        ]
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    fill()


if __name__ == "__main__":
    main()
