"""Measure what certificates are worth, for ``docs/certificate.md``.

Run ``python docs/certificate.py`` (about ten minutes on one core); it writes
``results/certificate.csv`` and fills the tables of ``docs/certificate.md`` from it.
``--tables`` only fills the tables; ``--part simulated`` (or ``broken``, ``cifar``)
measures one part and keeps the others.

*simulated*: Gaussian mixtures and digits under pure label shift; the truth is the
accuracy on 10,000 further samples of the target. *broken*: digits with noise, blur or
an unseen class. *cifar*: the protocol of ``docs/estimation.py``.
"""

import argparse
import csv
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import estimation
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from tailshift import Certificate, Predictions, certify, post_compensate, priors
from tailshift.estimators import FewSamplesWarning
from tailshift.estimators.certificate import POSTERIOR_SAMPLES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "certificate.csv"
DOCUMENT = ROOT / "docs" / "certificate.md"

Row = dict[str, str | int | float]
Draw = Callable[..., tuple[Tensor, Tensor]]
"""Takes a prior, a number of samples and a generator; returns logits and labels."""

HELD_OUT, FURTHER = 1000, 10_000
NUM_REPLICATES = 99
PIXEL_NOISE, MORE_NOISE = 0.15, 0.3
BLUR = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]).double() / 16
UNSEEN_SHARE = 0.2
TARGETS = ("uniform", "backward", "permuted", "knock-out")
ESTIMATES = ("certificate", "by labels", "by posteriors", "held-out", "confidence")


@dataclass(frozen=True)
class World:
    """Where samples come from, and the prior that its logits carry."""

    name: str
    source_prior: Tensor
    draw: Draw


def gaussians(num_classes: int) -> World:
    """Return unit Gaussians around random means; the model is overconfident."""
    generator = torch.Generator().manual_seed(num_classes)
    means = torch.randn(num_classes, 8, generator=generator).double()
    p_s = priors.from_counts(priors.long_tailed_counts(10_000, 20, num_classes))

    def draw(prior: Tensor, n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.multinomial(prior, n, replacement=True, generator=g)
        x = means[y] + torch.randn(n, 8, generator=g).double()
        log_density = x @ means.T - means.square().sum(dim=1) / 2
        return 1.5 * (log_density + p_s.log()), y

    return World(f"Gaussians, {num_classes} classes", p_s, draw)


def digits(num_classes: int = 10) -> World:
    """Return digits with fresh noise, seen by a network that learnt a long tail."""
    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(len(y), generator=g)
    x, y = x[order] / 16, y[order].long()
    counts = priors.long_tailed_counts(80, 20, num_classes)
    own = [(y == c).nonzero()[:, 0] for c in range(10)]
    train = torch.cat([own[c][:n] for c, n in enumerate(counts.tolist())]).repeat(5)
    noise = PIXEL_NOISE * torch.randn(len(train), 64, generator=g).double()
    network = MLPClassifier((64,), max_iter=60, alpha=1e-3, random_state=0)
    network.fit(x[train] + noise, y[train])
    layers = [torch.from_numpy(part) for part in network.coefs_ + network.intercepts_]
    pools = [x[rows[80:]] for rows in own]

    def draw(
        prior: Tensor, n: int, g: torch.Generator, fault: str = ""
    ) -> tuple[Tensor, Tensor]:
        y = torch.multinomial(prior, n, replacement=True, generator=g)
        if fault == "unseen class":
            y[torch.rand(n, generator=g) < UNSEEN_SHARE] = num_classes
        at = torch.rand(n, generator=g)
        x = torch.stack(
            [
                pools[c][int(u * len(pools[c]))]
                for c, u in zip(y.tolist(), at.tolist(), strict=True)
            ]
        )
        if fault == "blur":
            image = F.pad(x.reshape(-1, 1, 8, 8), (1, 1, 1, 1))
            x = F.conv2d(image, BLUR[None, None]).flatten(1)
        sd = MORE_NOISE if fault == "noise" else PIXEL_NOISE
        x = x + sd * torch.randn(n, 64, generator=g).double()
        w1, w2, b1, b2 = layers
        return (x @ w1 + b1).relu() @ w2 + b2, y

    return World("digits", priors.from_counts(counts), draw)


def target_prior(target: str, p_s: Tensor, g: torch.Generator) -> Tensor:
    """Return the class mix of a target."""
    num_classes = len(p_s)
    if target == "backward":
        return p_s.reciprocal() / p_s.reciprocal().sum()
    if target == "permuted":
        return p_s[torch.randperm(num_classes, generator=g)]
    prior = torch.ones(num_classes).double()
    if target == "knock-out":
        prior[torch.randperm(num_classes, generator=g)[: num_classes // 5]] = 0
    return prior / prior.sum()


def right(f: Tensor, y: Tensor, trained: Tensor, q: Tensor) -> Tensor:
    """Return which answers for the prior q are right, (N,)."""
    answer = post_compensate(f.double(), trained_prior=trained, target_prior=q)
    return (answer.argmax(dim=1) == y).double()


def estimates(found: Certificate, known: Predictions, x: Tensor) -> dict[str, float]:
    """Return the estimates of the accuracy, the certificate's and the others."""
    f, y, trained = known.logits, known.labels, known.trained_prior
    q, k = found.target_prior, POSTERIOR_SAMPLES
    n = torch.bincount(y, minlength=len(q)).double()
    hits = torch.bincount(y, right(f, y, trained, q), len(q))
    posterior = (found.recall * (n + k) - hits) / k  # what the certificate added
    seen = n > 0
    labels = (q * hits / n.clamp_min(1)).sum() / q[seen].sum()
    served = post_compensate(x.double(), trained_prior=trained, target_prior=q)
    return {
        "certificate": found.accuracy,
        "by labels": labels.item(),
        "by posteriors": (q * posterior).sum().item(),
        "held-out": right(f, y, trained, found.source_prior).mean().item(),
        "confidence": served.softmax(dim=1).amax(dim=1).mean().item(),
    }


def row(
    part: str, world: str, target: str, draw: int, found: Certificate, truth: float
) -> Row:
    """Return what every part keeps of a draw."""
    low, high = found.accuracy_interval
    return {
        "part": part,
        "world": world,
        "target": target,
        "held_out": found.num_held_out,
        "num_samples": found.num_target,
        "draw": draw,
        "truth": round(100 * truth, 3),
        "low": round(100 * low, 3),
        "high": round(100 * high, 3),
        "p_value": round(found.assumption_p_value, 4),
    }


def measure(
    part: str, world: World, target: str, size: int, draw: int, fault: str = ""
) -> Row:
    """Return the row of one certificate; its truth is measured on further samples."""
    p_s = world.source_prior
    own = (world.name, target, size, draw)
    g = torch.Generator().manual_seed(1000 * draw + size if fault else _seed(*own))
    p_t = target_prior(target, p_s, g)
    how = {"fault": fault} if fault else {}
    x, _ = world.draw(p_t, size, g, **how)
    f, y = world.draw(p_s, HELD_OUT, g)
    known = Predictions(f, y, (1e6 * p_s).long(), p_s)
    found = certify(known, x, level=0, num_replicates=NUM_REPLICATES, seed=draw)
    f, y = world.draw(p_t, FURTHER, g, **how)
    truth = right(f, y, p_s, found.target_prior).mean().item()
    kept = row(part, world.name, fault or target, draw, found, truth)
    values = estimates(found, known, x)
    return kept | {name: round(100 * value, 3) for name, value in values.items()}


def _seed(*parts: object) -> int:
    """Return a seed of its own for each draw, the same on every machine."""
    return zlib.crc32(repr(parts).encode())


def simulated() -> Iterator[Row]:
    """Yield the rows under pure label shift."""
    plan = [
        (digits(), (300, 1000, 2000, 5000), 6),
        (gaussians(10), (300, 2000), 6),
        (gaussians(30), (300, 2000), 5),
        (gaussians(100), (300, 2000), 3),
    ]
    for world, sizes, draws in plan:
        for target in TARGETS:
            for size in sizes:
                for draw in range(draws):
                    yield measure("simulated", world, target, size, draw)
            sys.stderr.write(f"{world.name}: {target}\n")


def broken() -> Iterator[Row]:
    """Yield the rows of digits that are no mixture of the source's classes."""
    for fault, world in (
        ("noise", digits()),
        ("blur", digits()),
        ("unseen class", digits(9)),
    ):
        for draw in range(25):
            made = measure("broken", world, "uniform", 1000, draw, fault)
            yield made | {"low": "", "high": ""}  # the figure is refused, and wrong
        sys.stderr.write(f"{fault}\n")


def cifar(name: str = "Softmax", draws: int = 10) -> Iterator[Row]:
    """Yield the rows of kept CIFAR-100-LT logits; the truth is of the very samples."""
    path = estimation.LOGITS / f"{estimation.RUNS[name]}.safetensors"
    kept = Predictions.load(path)
    f, y = kept.logits.float(), kept.labels
    counts, trained = kept.source_counts, kept.trained_prior
    for draw in range(draws):
        g = torch.Generator().manual_seed(draw)
        held_out, pool = estimation.split(y, counts, g)
        known = Predictions(f[held_out], y[held_out], counts, trained)
        for target in estimation.TARGETS:
            n = estimation.target_counts(target, counts, g)
            chosen = torch.cat([own[:k] for own, k in zip(pool, n, strict=True)])
            x = f[chosen]
            # The error alone is asked for, and replicates would take an hour.
            found = certify(known, x, level=0, num_replicates=2)
            truth = right(x, y[chosen], trained, found.target_prior).mean().item()
            values = estimates(found, known, x)
            made = row("cifar", f"CIFAR-100-LT, {name}", target, draw, found, truth)
            made |= {"low": "", "high": "", "p_value": ""}
            yield made | {key: round(100 * v, 3) for key, v in values.items()}
        sys.stderr.write(f"cifar: draw {draw}\n")


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "simulated": simulated,
    "broken": broken,
    "cifar": cifar,
}


def error(rows: Iterable[dict[str, str]], name: str) -> str:
    """Return the mean absolute error of an estimate of the accuracy, in points."""
    return f"{fmean(abs(float(r[name]) - float(r['truth'])) for r in rows):.1f}"


def share(statements: Iterable[bool]) -> str:
    """Return in how many of a hundred draws something holds."""
    return f"{100 * fmean(statements):.0f}"


def is_inside(r: dict[str, str]) -> bool:
    """Return whether the interval holds the truth."""
    return float(r["low"]) <= float(r["truth"]) <= float(r["high"])


def is_refused(r: dict[str, str]) -> bool:
    """Return whether the test rejects at 5 %."""
    return float(r["p_value"]) <= 0.05


def grouped(rows: list[dict[str, str]], *keys: str) -> dict[tuple[str, ...], list]:
    """Return the rows of each combination of values, in the order they come."""
    groups: dict[tuple[str, ...], list] = {}
    for r in rows:
        groups.setdefault(tuple(r[key] for key in keys), []).append(r)
    return groups


def lines(head: str, body: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    rule = "|---" * head.count(" | ") + "|---|"
    return "\n".join(
        [f"| {head} |", rule, *("| " + " | ".join(r) + " |" for r in body)]
    )


def table_simulated(rows: list[dict[str, str]]) -> str:
    """Return coverage, errors and false alarms under pure label shift."""
    groups = grouped(rows, "world", "num_samples") | {("all", ""): rows}
    body = (
        [
            *key,
            str(len(own)),
            share(map(is_inside, own)),
            f"{fmean(float(r['high']) - float(r['low']) for r in own):.1f}",
            *(error(own, name) for name in ESTIMATES),
            share(map(is_refused, own)),
        ]
        for key, own in groups.items()
    )
    head = "data | target samples | draws | covers, % | width | "
    return lines(head + " | ".join(ESTIMATES) + " | rejected, %", body)


def table_broken(rows: list[dict[str, str]]) -> str:
    """Return how often the test rejects, and how wrong the figure would be."""
    body = (
        [fault, str(len(own)), share(map(is_refused, own)), error(own, "certificate")]
        for (fault,), own in grouped(rows, "target").items()
    )
    return lines("fault | draws | rejected, % | error if it were not", body)


def table_cifar(rows: list[dict[str, str]]) -> str:
    """Return the errors by target, means over draws."""
    groups = grouped(rows, "target") | {("mean",): rows}
    body = (
        [
            target.replace(":", " "),
            f"{fmean(float(r['truth']) for r in own):.1f}",
            *(error(own, name) for name in ESTIMATES),
        ]
        for (target,), own in groups.items()
    )
    return lines("target | accuracy | " + " | ".join(ESTIMATES), body)


TABLES = {"simulated": table_simulated, "broken": table_broken, "cifar": table_cifar}


def fill(rows: list[dict[str, str]]) -> None:
    """Write the tables between the markers of the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for part, table in TABLES.items():
        own = [r for r in rows if r["part"] == part]
        if own:
            mark = f"<!-- certificate {part}"
            text = re.sub(
                rf"({mark}: begin -->\n).*?({mark}: end -->)",
                lambda m, own=own, table=table: f"{m[1]}\n{table(own)}\n\n{m[2]}",
                text,
                flags=re.DOTALL,
            )
    DOCUMENT.write_text(text, encoding="utf-8")


def read() -> list[dict[str, str]]:
    """Return the rows that are kept."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Measure, keep and fill."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=PARTS, help="measure this part alone")
    parser.add_argument("--tables", action="store_true", help="only fill the tables")
    arguments = parser.parse_args()
    if not arguments.tables:
        # One held-out sample of a class is what some of this is about.
        warnings.simplefilter("ignore", FewSamplesWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        wanted = [arguments.part] if arguments.part else list(PARTS)
        made = [made for part in wanted for made in PARTS[part]()]
        rows = [r for r in read() if r["part"] not in wanted] + made
        rows.sort(key=lambda r: list(PARTS).index(str(r["part"])))
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    fill(read())


if __name__ == "__main__":
    main()
