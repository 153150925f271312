"""Decisions under label shift: `adapt`, `certify` and prediction sets on a grid.

python benchmarks/decisions.py --draws 40 --results results/decisions.csv

Each cell combines number of classes, sample sizes, model, source, held-out prior and
target. The cells are a pairwise covering design: every pair of values of two factors
occurs in at least one cell.
"""

import argparse
import csv
import itertools
import math
import subprocess
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tailshift import Predictions, post_compensate
from tailshift.estimators import ConformalSets, adapt, certify
from tailshift.metrics import expected_calibration_error

FACTORS: dict[str, tuple[Any, ...]] = {
    "num_classes": (2, 5, 10, 20, 100),
    "num_held_out": (60, 150, 300, 1000),
    "num_target": (50, 200, 1000),
    "model": ("exact", "over", "under", "misfit", "noisy", "gbm", "forest"),
    "source": ("balanced", "longtail"),
    "held_out": ("source", "balanced"),
    "target": (
        "source",
        "uniform",
        "backward",
        "permuted",
        "spike",
        "knockout",
        "dirichlet",
    ),
}
NUM_WORLDS = 8
"""Worlds per cell: other class means, other distortions, other fitted models."""
NUM_TRUTH = 20_000
SEPARATION = {2: 0.5, 5: 0.65, 10: 0.8, 20: 0.95, 100: 1.25}
DIMENSIONS = 8


@dataclass(frozen=True)
class Cell:
    """One combination of the factors."""

    num_classes: int
    num_held_out: int
    num_target: int
    model: str
    source: str
    held_out: str
    target: str


def covering_design(seed: int) -> list[Cell]:
    """Return cells in which every pair of values of two factors occurs."""
    rng = np.random.default_rng(seed)
    names = list(FACTORS)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in FACTORS[a]
        for y in FACTORS[b]
    }
    cells = []
    while missing:
        tried = [
            {name: FACTORS[name][rng.integers(len(FACTORS[name]))] for name in names}
            for _ in range(300)
        ]
        (first, x), (second, y) = sorted(missing, key=str)[0]
        covered = []
        for values in tried:
            values |= {first: x, second: y}
            pairs = itertools.combinations(values.items(), 2)
            covered.append(sum(pair in missing for pair in pairs))
        best = tried[int(np.argmax(covered))]
        missing -= set(itertools.combinations(best.items(), 2))
        cells.append(Cell(**best))
    return cells


class World:
    """Gaussian classes, and a model whose logits are exact, distorted or fitted."""

    def __init__(self, num_classes: int, model: str, source: str, seed: int) -> None:
        rng = np.random.default_rng([seed, num_classes])
        C = num_classes
        self.model, self.num_classes = model, C
        self.means = rng.normal(size=(C, DIMENSIONS)) * SEPARATION[C]
        self.ratio = 100.0 if C >= 100 else 20.0
        steps = np.arange(C) / (C - 1)
        p_s = self.ratio**-steps if source == "longtail" else np.ones(C)
        self.source_prior = p_s / p_s.sum()
        self.scale = np.exp(rng.normal(0, 0.4, C))
        self.bias = rng.normal(0, 0.5, C)
        self.fitted = None
        if model in ("gbm", "forest"):
            self.fitted = self._fit(rng)

    def _fit(self, rng: np.random.Generator) -> Any:
        from sklearn.ensemble import (
            HistGradientBoostingClassifier,
            RandomForestClassifier,
        )

        y = rng.choice(self.num_classes, 2000, p=self.source_prior)
        y[: self.num_classes] = np.arange(self.num_classes)
        x = self._features(y, rng)
        if self.model == "forest":
            return RandomForestClassifier(100, random_state=0, n_jobs=1).fit(x, y)
        iterations = 40 if self.num_classes < 100 else 10
        return HistGradientBoostingClassifier(
            max_iter=iterations, early_stopping=False, random_state=0
        ).fit(x, y)

    def _features(
        self, y: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.float64]:
        return self.means[y] + rng.normal(size=(len(y), DIMENSIONS))

    def sample(
        self, prior: NDArray[np.float64], size: int, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return logits and labels of a sample."""
        y = rng.choice(self.num_classes, size, p=prior)
        f = self._logits(self._features(y, rng))
        return torch.from_numpy(f).float(), torch.from_numpy(y)

    def _logits(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        p_s = self.source_prior
        if self.fitted is not None:
            return np.log(0.999 * self.fitted.predict_proba(x) + 0.001 * p_s)
        f = x @ self.means.T - (self.means**2).sum(axis=1) / 2 + np.log(p_s)
        f -= np.logaddexp.reduce(f, axis=1, keepdims=True)
        if self.model == "misfit":
            return self.scale * f + self.bias
        if self.model == "noisy":
            return np.log(0.8 * np.exp(f) + 0.2 / self.num_classes)
        return {"exact": 1.0, "over": 2.0, "under": 0.5}[self.model] * f

    def target_prior(self, kind: str, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the prior of a target."""
        C, p_s = self.num_classes, self.source_prior
        tail = self.ratio ** -(np.arange(C) / (C - 1))
        q = {
            "source": p_s,
            "uniform": np.ones(C),
            "backward": tail[::-1],
            "permuted": rng.permutation(tail),
            "spike": np.full(C, 0.1 / (C - 1)),
            "knockout": p_s.copy(),
            "dirichlet": rng.dirichlet(np.ones(C)),
        }[kind].astype(float)
        if kind == "spike":
            q[rng.integers(C)] = 0.9
        if kind == "knockout":
            q[rng.choice(C, max(1, C // 4), replace=False)] = 0
        return q / q.sum()


make_world = lru_cache(maxsize=64)(World)


def run_draw(cell: Cell, draw: int, *, first_seed: int) -> dict[str, Any]:
    """Return what `adapt` and `certify` say in one draw, next to the truth."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seed = first_seed + draw % NUM_WORLDS
    world = make_world(cell.num_classes, cell.model, cell.source, seed)
    rng = np.random.default_rng([first_seed + draw, 1])
    q = world.target_prior(cell.target, rng)
    p_h = world.source_prior
    if cell.held_out == "balanced":
        p_h = np.full(cell.num_classes, 1 / cell.num_classes)
    f_h, y_h = world.sample(p_h, cell.num_held_out, rng)
    f, _ = world.sample(q, cell.num_target, rng)
    test = world.sample(q, NUM_TRUTH, rng)
    p_s = torch.from_numpy(world.source_prior)
    counts = (5000 * p_s).round().clamp_min(1).long()
    held_out = Predictions(f_h, y_h, source_counts=counts, logit_prior=p_s)
    start = time.process_time()
    adaptation = adapt(held_out, f)
    middle = time.process_time()
    certificate = certify(held_out, f)
    end = time.process_time()
    truth = torch.from_numpy(q)
    known = truth_of(adaptation, test, truth, p_s)
    sets = set_coverage(held_out, known["_test"], truth)
    return (
        known
        | sets
        | judged(certificate, known, truth)
        | {
            "decision": adaptation.decision,
            "status": certificate.status,
            "p_value": certificate.assumption_p_value,
            "adapt_seconds": middle - start,
            "certify_seconds": end - middle,
        }
    )


def set_coverage(
    held_out: Predictions, test: tuple[Tensor, Tensor], q: Tensor
) -> dict[str, float]:
    """Return coverage and size of 90 % prediction sets for the true target prior."""
    f, y = (part[:5000] for part in test)
    n = torch.bincount(held_out.labels, minlength=len(q))
    tail = torch.isin(y, n.argsort()[: max(1, len(q) // 3)])
    row = {}
    for by in ("all", "class"):
        made = ConformalSets(coverage=0.9, by=by, allow_empty=True).fit(held_out)
        is_in = made.predict_sets(f, q)
        hit = is_in.gather(1, y[:, None])[:, 0].double()
        row[f"{by}_coverage"] = 100 * hit.mean().item()
        row[f"{by}_size"] = is_in.double().sum(dim=1).mean().item()
        if by == "class" and tail.any() and n.min() >= 3:
            classes = y[tail].unique()
            of_class = [hit[y == c].mean() for c in classes if (y == c).sum() >= 10]
            if of_class:
                row["tail_coverage"] = 100 * torch.stack(of_class).mean().item()
    return row


def truth_of(
    adaptation: Any, test: tuple[Tensor, Tensor], q: Tensor, p_s: Tensor
) -> dict[str, Any]:
    """Return true accuracies of keeping, following and the decision, in percent."""
    f, y = test
    accuracy = partial(_accuracy, y=y)
    kept = post_compensate(f.double(), logit_prior=p_s, target_prior=p_s)
    oracle = post_compensate(f.double(), logit_prior=p_s, target_prior=q + 1e-12)
    return {
        "kept": accuracy(kept),
        "followed": accuracy(adaptation.retarget_to_estimate(f)),
        "used": accuracy(adaptation.retarget(f)),
        "oracle": accuracy(oracle),
        "_test": test,
    }


def _accuracy(f: Tensor, y: Tensor) -> float:
    return 100 * (f.argmax(dim=1) == y).double().mean().item()


def judged(certificate: Any, known: dict[str, Any], q: Tensor) -> dict[str, Any]:
    """Return whether the certificate's intervals contain the truth."""
    f, y = known.pop("_test")
    rule = certificate.retarget(f)
    if certificate.is_refused:
        return {}
    row: dict[str, Any] = {}
    predicted, C = rule.argmax(dim=1), len(q)
    hits = (predicted == y).double()
    n = torch.bincount(y, minlength=C).double()
    recall = torch.zeros(C).double().index_add_(0, y, hits) / n.clamp_min(1)
    seen = n >= 20
    truths = {
        "accuracy": hits.mean().item(),
        "macro_recall": recall[q > 0].mean().item(),
        "ece": expected_calibration_error(rule, y),
        "nll": F.cross_entropy(rule, y).item(),
        "gain": hits.mean().item() - known["kept"] / 100,
    }
    for name, value in truths.items():
        low, high = getattr(certificate, f"{name}_interval")
        row[f"{name}_covered"] = low <= value <= high
        row[f"{name}_error"] = getattr(certificate, name) - value
        row[f"{name}_width"] = high - low
    low, high = certificate.recall_interval
    inside = (low <= recall) & (recall <= high)
    row["recall_covered"] = inside[seen].double().mean().item()
    low, high = certificate.prior_interval
    row["prior_covered"] = ((low <= q) & (q <= high)).double().mean().item()
    low, high = certificate.as_trained.accuracy_interval
    row["trained_covered"] = low <= known["kept"] / 100 <= high
    return row


FIGURES = (
    "accuracy",
    "trained",
    "macro_recall",
    "ece",
    "nll",
    "gain",
    "recall",
    "prior",
)
MEANS = (
    *("kept", "followed", "used", "oracle", "accuracy_error", "accuracy_width"),
    *("all_coverage", "all_size", "class_coverage", "class_size", "tail_coverage"),
    *("adapt_seconds", "certify_seconds"),
)


def summarise(cell: Cell, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a cell.

    Coverage is in percent of the draws with a supported certificate. `regret` is how
    much the decision is below the better of keeping and following, in points.
    """
    status = [row["status"] for row in rows]
    supported = [row for row in rows if row["status"] == "supported"]
    summary: dict[str, Any] = asdict(cell) | {"draws": len(rows)}
    summary |= {kind: status.count(kind) for kind in ("supported", "indicative")}
    summary["refused"] = status.count("refused")
    for name in FIGURES:
        covered = [row[f"{name}_covered"] for row in supported]
        summary[f"{name}_covered"] = _mean([100 * value for value in covered])
    for name in MEANS:
        summary[name] = _mean([row[name] for row in rows if name in row])
    best = max(float(summary["kept"]), float(summary["followed"]))
    summary["regret"] = f"{best - float(summary['used']):.2f}"
    return summary


def _mean(values: Sequence[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    return f"{sum(known) / len(known):.3f}" if known else ""


def main() -> None:
    """Run the grid and write a row per cell; cells that are there are not run again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40, help="draws per cell")
    parser.add_argument("--design", type=int, default=0, help="seed of the cells")
    parser.add_argument("--seed", type=int, default=0, help="first seed of the worlds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--results", type=Path, required=True, help="CSV file")
    options = parser.parse_args()
    done = read_rows(options.results)
    cells = [cell for cell in covering_design(options.design) if cell not in done]
    chunk = -(-options.draws // options.jobs)
    with ProcessPoolExecutor(options.jobs) as pool:
        for cell in cells:
            run = partial(run_draw, cell, first_seed=options.seed)
            rows = list(pool.map(run, range(options.draws), chunksize=chunk))
            facts = {"seed": options.seed, "commit": commit()}
            write_row(options.results, summarise(cell, rows) | facts)
            print(cell, flush=True)


def read_rows(path: Path) -> set[Cell]:
    """Return the cells of a results file."""
    if not path.exists():
        return set()
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [field.name for field in fields(Cell)]
    return {
        Cell(**{name: type(FACTORS[name][0])(row[name]) for name in names})
        for row in rows
    }


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Append a row, after a heading if the file is new."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def commit() -> str:
    """Return the commit of the checkout that this file is in."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True)
    return found.stdout.decode().strip()


if __name__ == "__main__":
    main()
