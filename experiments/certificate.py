"""Measure certificates where the assumption fails, and on CIFAR-100-LT.

    python experiments/certificate.py

It writes ``results/certificate.csv`` and fills the tables of ``docs/certificate.md``,
together with those of ``results/decisions.csv`` (``benchmarks/decisions.py``), one of
which is in ``docs/estimation.md``.
``--tables`` only fills the tables.

*broken*: digits with noise, blur or an unseen class, which a certificate must refuse.
*cifar*: the protocol of ``experiments/estimation.py``; the truth is the accuracy on the
unlabelled samples themselves.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from statistics import fmean

import estimation
import torch
import torch.nn.functional as F
from result_tables import (
    ROOT,
    Row,
    fill_markers,
    group_rows,
    markdown_table,
    read_rows,
    write_rows,
)
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from tailshift import Certificate, Predictions, certify, post_compensate, priors
from tailshift.estimators import FewSamplesWarning

RESULTS = ROOT / "results" / "certificate.csv"
DECISIONS = ROOT / "results" / "decisions.csv"
DOCUMENT = ROOT / "docs" / "certificate.md"
FAULTS = {"none": 10, "noise": 10, "blur": 10, "unseen class": 9}
"""Faults and the number of classes that the network knows."""
PIXEL_NOISE, MORE_NOISE = 0.15, 0.3
BLUR = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
UNSEEN_SHARE = 0.2
ESTIMATES = ("certificate", "held-out", "confidence")
FIGURES = {
    "accuracy": "accuracy",
    "trained": "as trained",
    "macro_recall": "macro recall",
    "ece": "ECE",
    "nll": "NLL",
    "gain": "gain",
    "recall": "recall per class",
    "prior": "prior",
}


class Digits:
    """Digits with fresh noise, and a network that was trained on a long tail."""

    def __init__(self, num_classes: int) -> None:
        x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
        g = torch.Generator().manual_seed(0)
        order = torch.randperm(len(y), generator=g)
        x, y = x[order].float() / 16, y[order].long()
        counts = priors.long_tailed_counts(80, 20, num_classes)
        own = [(y == c).nonzero()[:, 0] for c in range(10)]
        rows = [own[c][:n] for c, n in enumerate(counts.tolist())]
        train = torch.cat(rows).repeat(5)
        noise = PIXEL_NOISE * torch.randn(len(train), 64, generator=g)
        self.network = MLPClassifier((64,), max_iter=300, alpha=1e-3, random_state=0)
        self.network.fit(x[train] + noise, y[train])
        self.pools = [x[rows[80:]] for rows in own]
        self.source_prior = priors.from_counts(counts)
        self.num_classes = num_classes

    def draw(
        self, prior: Tensor, n: int, fault: str, g: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return logits and labels."""
        y = torch.multinomial(prior, n, replacement=True, generator=g)
        if fault == "unseen class":
            y[torch.rand(n, generator=g) < UNSEEN_SHARE] = self.num_classes
        position = torch.rand(n, generator=g)
        x = torch.stack(
            [
                self.pools[c][int(u * len(self.pools[c]))]
                for c, u in zip(y.tolist(), position.tolist(), strict=True)
            ]
        )
        if fault == "blur":
            image = F.pad(x.reshape(-1, 1, 8, 8), (1, 1, 1, 1))
            x = F.conv2d(image, BLUR[None, None]).flatten(1)
        noise = MORE_NOISE if fault == "noise" else PIXEL_NOISE
        x = x + noise * torch.randn(n, 64, generator=g)
        return torch.from_numpy(self.network.predict_log_proba(x.numpy())), y


def broken() -> Iterator[Row]:
    """Yield 25 certificates of each fault."""
    for fault, num_classes in FAULTS.items():
        digits = Digits(num_classes)
        p_s, q = digits.source_prior, priors.uniform(num_classes)
        for draw in range(25):
            g = torch.Generator().manual_seed(draw)
            x, _ = digits.draw(q, 1000, fault, g)
            known = Predictions(
                *digits.draw(p_s, 1000, "none", g), (1e6 * p_s).long(), p_s
            )
            found = certify(known, x, alpha=0, seed=draw)
            f, y = digits.draw(q, 10_000, fault, g)
            truth = (found.retarget(f).argmax(dim=1) == y).double().mean().item()
            yield row("broken", fault, draw, found, truth, known, x)
        sys.stderr.write(f"{fault}\n")


def cifar(draws: int = 10) -> Iterator[Row]:
    """Yield certificates of kept logits for 13 targets."""
    path = estimation.LOGITS / f"{estimation.RUNS['Softmax']}.safetensors"
    kept = Predictions.load(path)
    f, y, counts = kept.logits.float(), kept.labels, kept.source_counts
    for draw in range(draws):
        g = torch.Generator().manual_seed(draw)
        held_out, pool = estimation.split(y, counts, g)
        known = Predictions(f[held_out], y[held_out], counts, kept.logit_prior)
        for target in estimation.TARGETS:
            n = estimation.target_counts(target, counts, g)
            chosen = torch.cat([own[:k] for own, k in zip(pool, n, strict=True)])
            x = f[chosen]
            found = certify(known, x, alpha=0, seed=draw)
            hits = found.retarget(x).argmax(dim=1) == y[chosen]
            truth = hits.double().mean().item()
            yield row("cifar", target, draw, found, truth, known, x)
        sys.stderr.write(f"cifar: draw {draw}\n")


def row(
    part: str,
    target: str,
    draw: int,
    found: Certificate,
    truth: float,
    known: Predictions,
    x: Tensor,
) -> Row:
    """Return the figures of a certificate next to the truth, in percent."""
    low, high = found.accuracy_interval
    plain = post_compensate(
        x, logit_prior=known.logit_prior, target_prior=found.target_prior
    )
    hits = known.logits.argmax(dim=1) == known.labels
    percent = {
        "truth": truth,
        "low": low,
        "high": high,
        "certificate": found.accuracy,
        "held-out": hits.double().mean().item(),
        "confidence": plain.double().softmax(dim=1).amax(dim=1).mean().item(),
    }
    return {
        "part": part,
        "target": target,
        "held_out": found.num_held_out,
        "num_samples": found.num_target,
        "draw": draw,
        "status": found.status,
        "p_value": round(found.assumption_p_value, 4),
        **{name: round(100 * value, 3) for name, value in percent.items()},
    }


def error(rows: list[dict[str, str]], name: str) -> str:
    """Return the mean absolute error of an estimate of the accuracy, in points."""
    return f"{fmean(abs(float(r[name]) - float(r['truth'])) for r in rows):.1f}"


def share(flags: list[bool]) -> str:
    """Return the share of true flags, in percent."""
    return f"{100 * fmean(flags):.0f}"


def table_broken(rows: list[dict[str, str]]) -> str:
    """Return how often each fault is refused, and the error if it were not."""
    body = [
        [
            fault,
            str(len(own)),
            share([float(r["p_value"]) <= 0.01 for r in own]),
            error(own, "certificate"),
        ]
        for (fault,), own in group_rows(rows, "target").items()
    ]
    return markdown_table(["fault", "draws", "refused, %", "error, points"], body)


def table_cifar(rows: list[dict[str, str]]) -> str:
    """Return errors and coverage by target."""
    groups = group_rows(rows, "target") | {("mean",): rows}
    body = [
        [
            target.replace(":", " "),
            f"{fmean(float(r['truth']) for r in own):.1f}",
            *(error(own, name) for name in ESTIMATES),
            share(
                [float(r["low"]) <= float(r["truth"]) <= float(r["high"]) for r in own]
            ),
            f"{fmean(float(r['high']) - float(r['low']) for r in own):.1f}",
        ]
        for (target,), own in groups.items()
    ]
    heading = ["target", "accuracy", *ESTIMATES, "covered, %", "width, points"]
    return markdown_table(heading, body)


def table_decisions(rows: list[dict[str, str]]) -> str:
    """Return coverage of each figure: mean over cells, and the lowest cell."""
    body = []
    for name, title in FIGURES.items():
        # A cell counts if its certificates are supported in most draws.
        found = [
            float(r[f"{name}_covered"])
            for r in rows
            if 2 * int(r["supported"]) >= int(r["draws"])
        ]
        body.append(
            [title, str(len(found)), f"{fmean(found):.1f}", f"{min(found):.1f}"]
        )
    return markdown_table(["figure", "cells", "mean, %", "lowest cell, %"], body)


def table_adapt(rows: list[dict[str, str]]) -> str:
    """Return accuracies of keeping, following and deciding, by target."""
    names = ("kept", "followed", "used", "oracle")
    body = [
        [
            target,
            str(len(own)),
            *(f"{fmean(float(r[name]) for r in own):.1f}" for name in names),
            f"{max(float(r['regret']) for r in own):.2f}",
        ]
        for (target,), own in group_rows(rows, "target").items()
    ]
    heading = ["target", "cells", "as trained", "estimate", "adapt", "true prior"]
    return markdown_table([*heading, "largest loss"], body)


def fill() -> None:
    """Write the tables between the markers of the document."""
    rows, decisions = read_rows(RESULTS), read_rows(DECISIONS)
    parts = {part: [r for r in rows if r["part"] == part] for part in PARTS}
    tables = {
        "certificate broken": table_broken(parts["broken"]),
        "certificate cifar": table_cifar(parts["cifar"]),
        "decisions coverage": table_decisions(decisions),
    }
    fill_markers(DOCUMENT, tables)
    fill_markers(estimation.DOCUMENT, {"decisions adapt": table_adapt(decisions)})


PARTS = {"broken": broken, "cifar": cifar}


def main() -> None:
    """Measure, keep and fill."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", action="store_true", help="only fill the tables")
    if not parser.parse_args().tables:
        # One held-out sample of a class is what the CIFAR part is about.
        warnings.simplefilter("ignore", FewSamplesWarning)
        write_rows(RESULTS, [made for part in PARTS.values() for made in part()])
    fill()


if __name__ == "__main__":
    main()
