"""Measure the estimators against other packages', for ``docs/estimation.md``.

Run ``python experiments/rivals.py`` (a few processor minutes); it writes
``results/rivals.csv``, a row for each method and scenario, as results come in, and
fills the tables of ``docs/estimation.md``. ``--tables`` only fills them. It needs
quapy[bayes], cvxpy, probmetrics and mlquantify.

The CIFAR logits are split as in ``experiments/estimation.py``. Estimates are made from
``num_samples`` of a target's samples and scored on all of them; those of a Gaussian
mixture are scored on 20,000 others. All packages are given the same held-out samples.
"""

import argparse
import copy
import csv
import importlib
import importlib.metadata
import multiprocessing
import re
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from estimation import split, target_counts
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from tailshift import Predictions, post_compensate, priors
from tailshift.estimators import EMEstimator, MAPEstimator
from tailshift.estimators.likelihood import maximise
from tailshift.estimators.map_em import NUM_FOLDS, STRENGTHS
from tailshift.estimators.posteriors import Posteriors

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "rivals.csv"
DOCUMENT = ROOT / "docs" / "estimation.md"
CIFAR = {
    "CIFAR, Softmax": "logits/cifar100_lt_ir100_softmax_quick-seed0",
    "CIFAR, LADE": "logits/cifar100_lt_ir100_lade_paper_quick-paper-seed0",
}
MIXTURES = {  # classes, spread of the means, logits times this, held-out samples
    "mixture, 10 classes": (10, 2.0, 1.5, 400),
    "mixture, 100 classes": (100, 5.0, 1.0, 2000),
    "mixture, 100 classes, harder": (100, 3.0, 1.0, 2000),
}
TARGETS = ("forward:50", "uniform", "backward:50", "permuted 50")
ALL = 10**6  # as many samples as there are
SCENARIOS = [
    *(("CIFAR, Softmax", t, n) for t in TARGETS for n in (300, ALL)),
    *(("CIFAR, LADE", t, 1000) for t in TARGETS),
    *(("mixture, 10 classes", t, 300) for t in ("uniform", "permuted 50")),
    *(("mixture, 100 classes", t, 300) for t in ("uniform", "permuted 50")),
    ("mixture, 100 classes, harder", "permuted 50", 300),
]
SLOW = ("BayesianMAPLS", "EMQ", "KDEyML")  # one draw, 300 samples of a permuted tail
PACKAGES = ("tailshift", "quapy", "probmetrics", "mlquantify", "torch")
Row = dict[str, str | int | float]


class Source(NamedTuple):
    """A model's held-out samples, and how its targets are drawn."""

    held_out: Tensor
    labels: Tensor
    logit_prior: Tensor
    source_prior: Tensor
    draw: Callable[[str, int, torch.Generator], "Target"]


class Target(NamedTuple):
    """Unlabelled logits, those that are scored, and the prior that they come from."""

    unlabelled: Tensor
    scored: Tensor
    labels: Tensor
    prior: Tensor


def cifar(name: str, generator: torch.Generator) -> Source:
    """Return the kept logits, split into held-out samples and those of targets."""
    known = Predictions.load(ROOT / "results" / f"{CIFAR[name]}.safetensors")
    f, y, counts = known.logits.float(), known.labels, known.source_counts
    held_out, pool = split(y, counts, generator)

    def draw(target: str, num_samples: int, generator: torch.Generator) -> Target:
        n = target_counts(target, counts, generator)
        chosen = torch.cat([own[:k] for own, k in zip(pool, n, strict=True)])
        chosen = chosen[torch.randperm(len(chosen), generator=generator)]
        prior = priors.from_counts(n)
        return Target(f[chosen[:num_samples]], f[chosen], y[chosen], prior)

    p_s = priors.from_counts(counts)
    return Source(f[held_out], y[held_out], known.logit_prior, p_s, draw)


def mixture(name: str, generator: torch.Generator) -> Source:
    """Return samples of unit Gaussians; at least one of each class is held out."""
    num_classes, spread, sharpness, num_held_out = MIXTURES[name]
    fixed = torch.Generator().manual_seed(num_classes)
    means = spread / 2 * torch.randn(num_classes, 8, generator=fixed).double()
    counts = priors.long_tailed_counts(10_000, 50.0, num_classes)
    p_s = priors.from_counts(counts)

    def logits(y: Tensor, generator: torch.Generator) -> Tensor:
        x = means[y] + torch.randn(len(y), 8, generator=generator).double()
        log_density = x @ means.T - means.square().sum(dim=1) / 2
        return sharpness * (log_density + p_s.log())

    def draw(target: str, num_samples: int, generator: torch.Generator) -> Target:
        prior = priors.from_counts(target_counts(target, counts, generator))
        y = torch.multinomial(
            prior, num_samples + 20_000, replacement=True, generator=generator
        )
        f = logits(y, generator)
        return Target(f[:num_samples], f[num_samples:], y[num_samples:], prior)

    y = torch.arange(num_classes).repeat_interleave(
        (num_held_out * p_s).round().long().clamp_min(1)
    )
    return Source(logits(y, generator), y, p_s, p_s, draw)


class ProbmetricsCalibrator:
    """A calibrator of probmetrics, which maps probabilities, as one of logits."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fit(self, logits: Tensor, labels: Tensor) -> None:
        """Fit to held-out logits and labels."""
        from probmetrics.calibrators import logistic

        self.inner = getattr(logistic, self.name)()
        self.inner.fit(logits.double().softmax(dim=1).numpy(), labels.numpy())

    def transform(self, logits: Tensor) -> Tensor:
        """Return logarithms of calibrated probabilities."""
        p = self.inner.predict_proba(logits.double().softmax(dim=1).numpy())
        return torch.from_numpy(p).clamp_min(1e-30).log()


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose samples are its own posteriors, for packages that want one."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def fit(self, *_: Any) -> "Given":
        """Learn nothing but that there are classes."""
        self.classes_ = np.arange(self.num_classes)
        return self

    def predict_proba(self, posteriors: Any) -> Any:
        """Return what was given."""
        return posteriors


Estimate = Callable[[Tensor], Any]
"""From unlabelled logits to a prior."""


def tailshift_estimator(kind: type[EMEstimator | MAPEstimator], by: Any) -> Any:
    """Return a method of ours with a calibrator."""

    def fit(source: Source) -> Estimate:
        estimator = kind(
            logit_prior=source.logit_prior,
            source_prior=source.source_prior,
            calibrator=copy.deepcopy(by),
        )
        estimator.fit(source.held_out, source.labels)
        return estimator.estimate

    return fit


def unlabelled_folds(source: Source) -> Estimate:
    """Return MAP with the strength cross-validated on the unlabelled samples alone."""
    estimator = MAPEstimator(
        logit_prior=source.logit_prior, source_prior=source.source_prior
    ).fit(source.held_out, source.labels)

    def estimate(logits: Tensor) -> Tensor:
        estimator.estimate(logits)  # for its centre
        p, g = estimator.posterior(logits), estimator.center_[:, None]
        m = estimator.denominator_[:, None]
        strengths = torch.tensor(STRENGTHS, dtype=torch.float64)
        fold = torch.randperm(len(p), generator=torch.Generator().manual_seed(0))
        fold = fold % NUM_FOLDS
        kept = fold[:, None] != torch.arange(NUM_FOLDS)
        found = maximise(
            Posteriors.of(p),
            m,
            start=g.repeat(1, NUM_FOLDS * len(strengths)),
            weights=kept.repeat_interleave(len(strengths), dim=1),
            pseudo_counts=g * strengths.repeat(NUM_FOLDS),
            tolerance=1e-3,
            max_iter=200,
        )
        u = (p @ (found.x / m)).reshape(len(p), NUM_FOLDS, -1)
        scores = u[torch.arange(len(p)), fold].clamp_min(1e-30).log().mean(dim=0)
        a = strengths[scores.argmax()] * g
        return maximise(Posteriors.of(p), m, start=g, pseudo_counts=a).x[:, 0]

    return estimate


def quapy_method(name: str, source: Source, **settings: Any) -> Estimate:
    """Return a method of QuaPy, on posteriors calibrated by ours."""
    from quapy.method import _bayesian, _liep, aggregative

    homes = {"BayesianMAPLS": _bayesian, "LEIP": _liep, "RLLS": aggregative}
    ours = EMEstimator(
        logit_prior=source.logit_prior, source_prior=source.source_prior
    ).fit(source.held_out, source.labels)
    p, y = ours.posterior(source.held_out).numpy(), source.labels.numpy()
    if name == "MAPLS":  # where BayesianMAPLS starts: the published point estimate
        shares = np.bincount(y) / len(y)
        return lambda x: _bayesian.mapls(p, ours.posterior(x).numpy(), shares)
    method = getattr(homes[name], name)(Given(p.shape[1]), val_split=(p, y), **settings)
    method.fit(p, y)
    return lambda x: method.predict(ours.posterior(x).numpy())


def mlquantify_method(name: str, source: Source) -> Estimate:
    """Return a method of mlquantify: EMQ with its own calibration, others with ours."""
    from mlquantify.likelihood import EMQ
    from mlquantify.matching import KDEyML

    by = None if name == "EMQ" else "bcts"
    ours = EMEstimator(
        logit_prior=source.logit_prior,
        source_prior=source.source_prior,
        calibrator=by,
    ).fit(source.held_out, source.labels)
    p, y = ours.posterior(source.held_out).numpy(), source.labels.numpy()
    method = EMQ(calib_function="bcts") if name == "EMQ" else KDEyML()

    def estimate(x: Tensor) -> Any:
        found = method.aggregate(ours.posterior(x).numpy(), p, y)
        return list(found.values()) if isinstance(found, dict) else found

    return estimate


SVS, SMS = (
    ProbmetricsCalibrator("SVSCalibrator"),
    ProbmetricsCalibrator("SMSCalibrator"),
)
METHODS: dict[str, Callable[[Source], Estimate]] = {
    "none": lambda source: lambda _: source.source_prior,
    "EM": tailshift_estimator(EMEstimator, "bcts"),
    "EM, SVS": tailshift_estimator(EMEstimator, SVS),
    "EM, SMS": tailshift_estimator(EMEstimator, SMS),
    "MAP": tailshift_estimator(MAPEstimator, "bcts"),
    "MAP, SVS": tailshift_estimator(MAPEstimator, SVS),
    "MAP, SMS": tailshift_estimator(MAPEstimator, SMS),
    "MAP, unlabelled folds": unlabelled_folds,
    "MAPLS": partial(quapy_method, "MAPLS"),
    "BayesianMAPLS": partial(
        quapy_method, "BayesianMAPLS", num_warmup=100, num_samples=200
    ),
    "LEIP": partial(quapy_method, "LEIP"),
    "LEIP, τ 0.5": partial(quapy_method, "LEIP", tau=0.5),
    "RLLS": partial(quapy_method, "RLLS"),
    "EMQ": partial(mlquantify_method, "EMQ"),
    "KDEyML": partial(mlquantify_method, "KDEyML"),
}


def accuracy(target: Target, source: Source, prior: Tensor) -> float:
    """Return the accuracy after re-targeting to a prior, in percent."""
    answer = post_compensate(
        target.scored, logit_prior=source.logit_prior, target_prior=prior
    )
    return 100 * (answer.argmax(1) == target.labels).double().mean().item()


def measure(draw: int, data: str, is_slow: bool) -> list[Row]:
    """Return a row for each scenario of some data, and each method, slow or not."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    for package in ("quapy.method._bayesian", "probmetrics.calibrators", "cvxpy"):
        importlib.import_module(package)  # not to be timed
    generator = torch.Generator().manual_seed(draw)
    source = (cifar if data in CIFAR else mixture)(data, generator)
    methods = {
        name: _timed(fit, source)
        for name, fit in METHODS.items()
        if (name in SLOW) == is_slow
    }
    return [
        row
        for number, (own, target, num_samples) in enumerate(SCENARIOS)
        if own == data
        and not (is_slow and (target, num_samples) != ("permuted 50", 300))
        for row in _scenario(
            1000 * draw + number, data, target, num_samples, source, methods
        )
    ]


def _timed(function: Callable[[Any], Any], argument: Any) -> tuple[Any, float]:
    start = time.process_time()
    return function(argument), time.process_time() - start


def _scenario(
    seed: int,
    data: str,
    name: str,
    num_samples: int,
    source: Source,
    methods: dict[str, tuple[Estimate, float]],
) -> Iterator[Row]:
    generator = torch.Generator().manual_seed(seed)
    target = source.draw(name, num_samples, generator)
    oracle = accuracy(target, source, target.prior)
    for method, (estimate, fit_seconds) in methods.items():
        found, seconds = _timed(estimate, target.unlabelled)
        q = torch.as_tensor(np.asarray(found), dtype=torch.float64)
        q = q / q.sum()
        yield {
            "data": data,
            "target": name,
            "num_samples": "all" if num_samples == ALL else num_samples,
            "method": method,
            "accuracy": accuracy(target, source, q),
            "oracle": oracle,
            "l1": (q - target.prior).abs().sum().item(),
            "seconds": fit_seconds + seconds,
        }
    sys.stderr.write(f"seed {seed}: {data}, {name}, {num_samples}\n")


def _order(data: str, target: str, num_samples: str | int, method: str) -> list[int]:
    scenarios = [(d, t, "all" if n == ALL else n) for d, t, n in SCENARIOS]
    return [scenarios.index((data, target, num_samples)), list(METHODS).index(method)]


def keep(rows: list[Row]) -> None:
    """Write means over draws."""
    keys = ("data", "target", "num_samples", "method")
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    versions = " ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        columns = ("accuracy", "oracle", "l1", "seconds")
        writer = csv.writer(file, lineterminator="\n")
        heads = ("gap_sd", "draws", "versions", "command")
        writer.writerow([*keys, *columns, *heads])
        for key, own in sorted(groups.items(), key=lambda item: _order(*item[0])):
            gaps = [float(row["accuracy"]) - float(row["oracle"]) for row in own]
            means = [round(fmean(float(row[c]) for row in own), 3) for c in columns]
            sd = round(stdev(gaps), 3) if len(gaps) > 1 else ""
            command = "python experiments/rivals.py"
            writer.writerow([*key, *means, sd, len(own), versions, command])


def table(rows: list[dict[str, str]], of: str) -> str:
    """Return methods down, scenarios across: points above the oracle, or L1."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        scenario = f"{row['target'].replace(':', ' ')}, {row['num_samples']}"
        gap = float(row["accuracy"]) - float(row["oracle"])
        cells[row["method"]][scenario] = (
            f"{gap:+.1f}".replace("-", "−") if of == "gap" else f"{float(row[of]):.2f}"
        )
    scenarios = list(cells["MAP"])
    lines = [
        "| method | " + " | ".join(scenarios) + " |",
        "|---" * (len(scenarios) + 1) + "|",
    ]
    lines += [
        f"| {method} | " + " | ".join(by.get(s, "") for s in scenarios) + " |"
        for method, by in cells.items()
    ]
    return "\n".join(lines)


def blocks(rows: list[dict[str, str]]) -> dict[str, str]:
    """Return the text of each marked block."""
    softmax, lade = ([r for r in rows if r["data"] == data] for data in CIFAR)
    mixtures = [
        {**r, "target": f"{r['data'].removeprefix('mixture, ')}, {r['target']}"}
        for r in rows
        if r["data"] in MIXTURES
    ]
    return {
        "rivals softmax gap": table(softmax, "gap"),
        "rivals softmax l1": table(softmax, "l1"),
        "rivals softmax seconds": table(softmax, "seconds"),
        "rivals lade gap": table(lade, "gap"),
        "rivals mixtures gap": table(mixtures, "gap"),
        "rivals mixtures l1": table(mixtures, "l1"),
    }


def fill() -> None:
    """Write the tables between the markers of the document."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, content in blocks(rows).items():
        text = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    DOCUMENT.write_text(text, encoding="utf-8")


def main() -> None:
    """Measure, keep and fill."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--tables", action="store_true", help="only fill the tables")
    arguments = parser.parse_args()
    if not arguments.tables:
        rows: list[Row] = []
        context = multiprocessing.get_context("fork")
        parts = [
            (draw, data, is_slow)
            for draw in range(arguments.draws)
            for is_slow in (False, True)
            for data in (*CIFAR, *MIXTURES)
            if not is_slow or (draw == 0 and data != "CIFAR, LADE")
        ]
        with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
            runs = [pool.submit(measure, *part) for part in parts]
            for run in as_completed(runs):
                if run.exception() is None:
                    rows += run.result()
                    keep(rows)
                else:
                    sys.stderr.write(f"failed: {run.exception()!r}\n")
    fill()


if __name__ == "__main__":
    main()
