"""Measure prediction sets and the book of priors, for ``docs/sites.md``.

Run ``python experiments/sites.py`` (about ten minutes on one core). It trains the
digits, writes ``results/conformal.csv`` and ``results/sites.csv``, and fills the tables
of ``docs/sites.md``. ``--tables`` only fills the tables, ``--draws 1`` is a quick look.

Each draw halves each class's test images at random. One half is held out: all of it
("half"), or thinned by the source prior, at least one per class ("source"). The other
half is the target: its images are weighted so that each class has the target's share,
which needs no image to be dropped.
"""

import argparse
import csv
import math
import re
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

import tailshift as ts
from tailshift import Predictions, priors
from tailshift.estimators import FewSamplesWarning
from tailshift.estimators.conformal import set_scores
from tailshift.targets import PAPER_TARGETS, exact_prior

ROOT = Path(__file__).parents[1]
LOGITS = ROOT / "results" / "logits"
CONFORMAL = ROOT / "results" / "conformal.csv"
SITES = ROOT / "results" / "sites.csv"
DOCUMENT = ROOT / "docs" / "sites.md"
METHODS = {
    "Softmax": "softmax_quick-seed0",
    "Balanced Softmax": "balanced_softmax_quick-seed0",
    "LADE (paper)": "lade_paper_quick-paper-seed0",
}
Row = dict[str, str | int | float]

COVERAGE = 0.9
SETS = ("all", "all or empty", "class")
NUM_SITES, PER_SITE = 200, 30
PARENT = "permuted:50:seed1"
STRENGTHS = (10.0, 30.0, 100.0)
DRAWS = {("digits", "sets"): 20, ("CIFAR-100", "sets"): 5}
DRAWS |= {("digits", "sites"): 3, ("CIFAR-100", "sites"): 2}


def load_predictions(data: str) -> Iterator[tuple[str, Predictions]]:
    """Yield the name of each method and its test logits."""
    for name, file in METHODS.items():
        if data == "CIFAR-100":
            yield (
                name,
                Predictions.load(LOGITS / f"cifar100_lt_ir100_{file}.safetensors"),
            )
            continue
        method = file.partition("_quick")[0]
        config = ts.load_recipe("digits_lt", [f"method.name={method}"])
        with tempfile.TemporaryDirectory() as folder:
            run = ts.train(config, output=Path(folder) / "run")
            yield name, run.predictions("test")


def split(p: Predictions, held_out: str, draw: int) -> tuple[Predictions, Tensor]:
    """Return the held-out samples, and the indices of the target's."""
    generator = torch.Generator().manual_seed(draw)
    n = p.source_counts
    known, target = [], []
    for c in range(p.num_classes):
        own = (p.labels == c).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=generator)]
        half = len(own) // 2
        kept = half if held_out == "half" else round(half * (n[c] / n.max()).item())
        known.append(own[: max(1, kept)])
        target.append(own[half:])
    chosen = torch.cat(known)
    return (
        Predictions(p.logits[chosen], p.labels[chosen], n, p.logit_prior),
        torch.cat(target),
    )


def ignoring(held_out: Predictions, x: Tensor, p_s: Tensor) -> Tensor:
    """Return sets of the model as trained, by a plain quantile of its scores."""

    def scores(f: Tensor) -> Tensor:
        g = ts.post_compensate(
            f.double(), logit_prior=held_out.logit_prior, target_prior=p_s
        )
        return set_scores(g.softmax(dim=1), g.argmax(dim=1))

    y = held_out.labels
    own = scores(held_out.logits)[torch.arange(len(y)), y].sort().values
    return scores(x) <= own[min(math.ceil(COVERAGE * (len(y) + 1)), len(y)) - 1]


def measure_sets(
    data: str, name: str, p: Predictions, held_out: str, draw: int
) -> Iterator[Row]:
    """Yield coverage, of all samples and of rare classes, and size of sets."""
    known, target = split(p, held_out, draw)
    x, y = p.logits[target], p.labels[target]
    fitted = {
        by + (" or empty" if empty else ""): ts.ConformalSets(
            COVERAGE, by=by, allow_empty=empty
        ).fit(known)
        for empty in (False, True)
        for by in ("all", "class")
    }
    plain = ignoring(known, x, priors.from_counts(p.source_counts))
    per_class = torch.bincount(y)
    rare = p.source_counts.argsort()[: p.num_classes // 3]
    for goal in PAPER_TARGETS:
        q = exact_prior(goal, p.source_counts, per_class)
        w = (q / per_class)[y]
        answer = ts.post_compensate(
            x.double(), logit_prior=p.logit_prior, target_prior=q
        ).argmax(dim=1)
        found = {
            "first answer": torch.nn.functional.one_hot(answer, p.num_classes).bool(),
            "ignoring": plain,
            **{by: sets.predict_sets(x, q) for by, sets in fitted.items()},
        }
        for column, sets in found.items():
            covered = sets[torch.arange(len(y)), y]
            by_class = torch.bincount(y, covered.double()) / per_class
            yield {
                "data": data,
                "method": name,
                "held_out": held_out,
                "num_held_out": len(known.labels),
                "draw": draw,
                "target": goal,
                "column": column,
                "coverage": round(100 * (w * covered).sum().item(), 3),
                "rare": round(100 * by_class[rare].mean().item(), 3),
                "size": round((w * sets.sum(dim=1)).sum().item(), 4),
            }


def measure_sites(
    data: str, p: Predictions, strength: float, draw: int
) -> Iterator[Row]:
    """Yield the distance and the accuracy of each kind of mix, labelled or not."""
    known, target = split(p, "source", draw)
    p_s, num_classes = priors.from_counts(p.source_counts), p.num_classes
    torch.manual_seed(draw)
    parent = exact_prior(PARENT, p.source_counts, 1)
    truth = torch.distributions.Dirichlet(strength * parent).sample((NUM_SITES,))
    em = ts.EMEstimator(logit_prior=p.logit_prior, source_prior=p_s)
    em.fit(known.logits, known.labels)
    labels = p.labels[target]
    names = [f"site {k}" for k in range(NUM_SITES)]
    books = {
        kind: ts.SitePriors(range_names(num_classes), p_s)
        for kind in ("labels", "logits")
    }
    own = {kind: torch.zeros(NUM_SITES, num_classes).double() for kind in books}
    for k, name in enumerate(names):
        weights = truth[k][labels]
        drawn = target[torch.multinomial(weights, PER_SITE, replacement=True)]
        counts = torch.bincount(p.labels[drawn], minlength=num_classes)
        books["labels"].add(name, counts=counts)
        books["logits"].add(name)
        books["logits"].update(name, p.logits[drawn], em)
        own["labels"][k], own["logits"][k] = priors.from_counts(counts), em.prior_
    score = scorer(p, target)
    for kind, book in books.items():
        mixes = {
            "training mix": p_s.expand(NUM_SITES, num_classes),
            "own": own[kind],
            "parent": book.prior("all").expand(NUM_SITES, num_classes),
            "shrunk": torch.stack([book.prior(name) for name in names]),
            "truth": truth,
        }
        for column, q in mixes.items():
            yield {
                "data": data,
                "known_by": kind,
                "strength": strength,
                "draw": draw,
                "column": column,
                "l1": round((q - truth).abs().sum(dim=1).mean().item(), 4),
                "accuracy": round(100 * score(q, truth), 3),
                "found_strength": round(book.strength(), 2),
                "effective_samples": round(fmean(map(book.num_samples, names)), 2),
            }


def range_names(num_classes: int) -> list[str]:
    """Return a name for each class."""
    return [f"class {c}" for c in range(num_classes)]


def scorer(p: Predictions, target: Tensor) -> Callable[[Tensor, Tensor], float]:
    """Return what gives the mean accuracy of mixes on sites of known mixes."""
    labels = p.labels[target]
    some = torch.cat([(labels == c).nonzero()[:25, 0] for c in range(p.num_classes)])
    f, y = p.logits[target[some]].float(), labels[some]
    f = f - p.logit_prior.log().float()
    n = torch.bincount(y)

    def score(mixes: Tensor, truth: Tensor) -> float:
        total = 0.0
        for q, theta in zip(mixes, truth, strict=True):
            right = (f + q.log().float()).argmax(dim=1) == y
            total += ((theta / n)[y] * right).sum().item()
        return total / len(mixes)

    return score


def measure(most_draws: int) -> tuple[list[Row], list[Row]]:
    """Return all rows of both files."""
    sets: list[Row] = []
    sites: list[Row] = []
    for data in ("digits", "CIFAR-100"):
        for name, p in load_predictions(data):
            for draw in range(min(most_draws, DRAWS[data, "sets"])):
                for held_out in ("half", "source"):
                    sets += measure_sets(data, name, p, held_out, draw)
            sys.stderr.write(f"{data}, {name}: sets\n")
            if name != "Softmax":
                continue
            for strength in STRENGTHS:
                for draw in range(min(most_draws, DRAWS[data, "sites"])):
                    sites += measure_sites(data, p, strength, draw)
                sys.stderr.write(f"{data}: sites of strength {strength:g}\n")
    return sets, sites


def means(
    rows: list[dict[str, str]], down: str, quantity: str
) -> dict[str, dict[str, float]]:
    """Return the mean of a quantity by what stands down and the column."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row[down]][row["column"]].append(float(row[quantity]))
    return {k: {c: fmean(v) for c, v in by.items()} for k, by in cells.items()}


def sets_table(rows: list[dict[str, str]]) -> str:
    """Return coverage and size of each kind of set, targets down."""
    coverage, size, rare = (
        means(rows, "target", q) for q in ("coverage", "size", "rare")
    )
    lines = [
        '| target | predicted class | shift ignored | `by="all"` | may be empty | '
        '`by="class"` | rare classes |',
        "|---" * (len(SETS) + 4) + "|",
    ]
    for target, by in coverage.items():
        cells = [f"{by['first answer']:.1f}"] + [
            f"{by[c]:.1f} ({size[target][c]:.2f})" for c in ("ignoring", *SETS)
        ]
        cells.append(f"{rare[target]['class']:.1f}")
        lines.append(f"| {target.replace(':', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sites_table(rows: list[dict[str, str]]) -> str:
    """Return distance and accuracy of each kind of mix, strengths down."""
    columns = ("training mix", "parent", "own", "shrunk", "truth")
    lines = [
        "| known by | A | A found | samples' worth | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 4) + "|",
    ]
    for kind in ("labels", "logits"):
        own = [row for row in rows if row["known_by"] == kind]
        l1, accuracy = (means(own, "strength", q) for q in ("l1", "accuracy"))
        found = means(own, "strength", "found_strength")
        worth = means(own, "strength", "effective_samples")
        for strength in l1:
            cells = [
                f"{l1[strength][c]:.2f} / {accuracy[strength][c]:.1f}" for c in columns
            ]
            facts = f"{found[strength]['own']:.0f} | {worth[strength]['own']:.0f}"
            lines.append(
                f"| {kind} | {float(strength):g} | {facts} | "
                + " | ".join(cells)
                + " |"
            )
    return "\n".join(lines)


def fill() -> None:
    """Write the tables between the markers of the document."""
    sets, sites = map(read, (CONFORMAL, SITES))
    tables = {}
    for data in ("digits", "CIFAR-100"):
        tables[f"{data} sites"] = sites_table([r for r in sites if r["data"] == data])
        for held_out in ("half", "source"):
            tables[f"{data} {held_out}"] = sets_table(
                [r for r in sets if (r["data"], r["held_out"]) == (data, held_out)]
            )
    text = DOCUMENT.read_text(encoding="utf-8")
    for marker, table in tables.items():
        text = re.sub(
            rf"(<!-- {marker}: begin -->\n).*?(<!-- {marker}: end -->)",
            lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    DOCUMENT.write_text(text, encoding="utf-8")


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[Row]) -> None:
    """Write the rows of a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Measure, keep and fill."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=1000, help="at most this many")
    parser.add_argument("--tables", action="store_true", help="only fill the tables")
    arguments = parser.parse_args()
    if not arguments.tables:
        # One held-out sample of a class is what this protocol is about.
        warnings.simplefilter("ignore", FewSamplesWarning)
        for path, rows in zip(
            (CONFORMAL, SITES), measure(arguments.draws), strict=True
        ):
            write(path, rows)
    fill()


if __name__ == "__main__":
    main()
