"""Measure the estimators on kept CIFAR-100-LT logits, for ``docs/estimation.md``.

    python experiments/estimation.py

It writes ``results/estimation.csv`` and fills the tables of ``docs/estimation.md``.
``--tables`` only fills the tables, ``--draws 1`` is a quick look.

Each draw splits each class's 100 test images at random 30/70. The 30 are thinned by the
source prior, at least one per class, to be the labelled held-out set. The 70 are
thinned to each target; they are estimated from, without labels, and scored on.
"""

import argparse
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from statistics import fmean

import torch
from result_tables import ROOT, Row, fill_markers, markdown_table, read_rows, write_rows
from torch import Tensor

from tailshift import Predictions, post_compensate, priors, targets
from tailshift.estimators import (
    BBSEEstimator,
    EMEstimator,
    FewSamplesWarning,
    RLLSEstimator,
    TiltEstimator,
    adapt,
)

LOGITS = ROOT / "results" / "logits"
RESULTS = ROOT / "results" / "estimation.csv"
DOCUMENT = ROOT / "docs" / "estimation.md"
RUNS = {
    "Softmax": "cifar100_lt_ir100_softmax-seed0",
    "Balanced Softmax": "cifar100_lt_ir100_balanced_softmax-seed0",
    "LADE (official)": "cifar100_lt_ir100_lade-official-seed0",
}
ESTIMATORS = {
    "EM": EMEstimator,
    "BBSE": BBSEEstimator,
    "RLLS": RLLSEstimator,
    "power law": TiltEstimator,
}
HELD_OUT, TARGET = 30, 70
KNOCKED_OUT = 20
TARGETS = (*targets.PAPER_TARGETS, "permuted 50", "knock-out")


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
        return targets.target_counts("forward:50", order, TARGET)
    if target == "knock-out":
        kept = targets.target_counts("uniform", counts, TARGET)
        kept[torch.randperm(num_classes, generator=generator)[:KNOCKED_OUT]] = 0
        return kept
    return targets.target_counts(target, counts, TARGET)


def measure(name: str, draw: int) -> Iterator[Row]:
    """Yield a row for each target and column of the table."""
    kept = Predictions.load(LOGITS / f"{RUNS[name]}.safetensors")
    f, y = kept.logits.float(), kept.labels
    counts, trained = kept.source_counts, kept.logit_prior
    p_s = priors.from_counts(counts)
    generator = torch.Generator().manual_seed(draw)
    held_out, pool = split(y, counts, generator)
    known = Predictions(f[held_out], y[held_out], counts, trained)
    fitted = {
        column: estimator(logit_prior=trained, source_prior=p_s).fit(
            known.logits, known.labels
        )
        for column, estimator in ESTIMATORS.items()
    }
    for target in TARGETS:
        n = target_counts(target, counts, generator)
        chosen = torch.cat([own[:k] for own, k in zip(pool, n, strict=True)])
        x = f[chosen]
        adapted = adapt(known, x)
        found = {
            "logits": trained,
            "as trained": p_s,
            "uniform": priors.uniform(len(p_s)),
            **{column: e.estimate(x) for column, e in fitted.items()},
            "estimate": adapted.estimated_prior,
            "adapt": adapted.target_prior,
            "true prior": priors.from_counts(n),
        }
        rules = {
            column: partial(post_compensate, logit_prior=trained, target_prior=q)
            for column, q in found.items()
        }
        rules |= {"estimate": adapted.retarget_to_estimate, "adapt": adapted.retarget}
        for column, q in found.items():
            hits = rules[column](x).argmax(dim=1) == y[chosen]
            yield {
                "method": name,
                "draw": draw,
                "held_out": len(held_out),
                "target": target,
                "num_samples": len(chosen),
                "column": column,
                "accuracy": round(100 * hits.double().mean().item(), 3),
                "l1": round((q - found["true prior"]).abs().sum().item(), 4),
            }
    sys.stderr.write(f"{name}: draw {draw}\n")


def table(rows: list[dict[str, str]], quantity: str) -> str:
    """Return targets down and columns across, means over draws."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row["target"]][row["column"]].append(float(row[quantity]))
    columns = list(next(iter(cells.values())))
    if rows[0]["method"] == "Softmax" or quantity == "l1":
        columns.remove("logits")  # is "as trained"
    digits = 1 if quantity == "accuracy" else 2
    body = [
        [target.replace(":", " "), *(f"{fmean(by[c]):.{digits}f}" for c in columns)]
        for target, by in cells.items()
    ]
    means = [fmean(value for by in cells.values() for value in by[c]) for c in columns]
    body.append(["mean", *(f"{mean:.{digits}f}" for mean in means)])
    return markdown_table(["target", *columns], body)


def fill() -> None:
    """Write the tables between the markers of the document."""
    rows = read_rows(RESULTS)
    tables = {
        f"{name} accuracy": table([r for r in rows if r["method"] == name], "accuracy")
        for name in RUNS
    }
    own = [row for row in rows if row["method"] == "Softmax"]
    fill_markers(DOCUMENT, tables | {"Softmax l1": table(own, "l1")})


def main() -> None:
    """Measure, keep and fill."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--tables", action="store_true", help="only fill the tables")
    options = parser.parse_args()
    if not options.tables:
        # One held-out sample of a class is what this protocol is about.
        warnings.simplefilter("ignore", FewSamplesWarning)
        write_rows(
            RESULTS,
            [
                row
                for name in RUNS
                for draw in range(options.draws)
                for row in measure(name, draw)
            ],
        )
    fill()


if __name__ == "__main__":
    main()
