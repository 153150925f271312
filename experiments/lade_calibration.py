"""Compare LADE with Balanced Softmax in calibration and under an unknown prior.

Run ``python experiments/lade_calibration.py``. It reads the test logits of
``results/logits/`` and writes ``results/calibration.csv``. ``python docs/tables.py``
fills the table of ``docs/results.md`` from it. It takes some minutes on one core.

The test images of each class are split in two. One half is labelled: a temperature is
fitted to its logits, compensated to uniform. From the other half each target is drawn
and scored, answered for the prior that the logits carry (``carried``), for the target's
(``known``) or for an estimate from the unlabelled target (``estimated``: MAP around
uniform). Then the halves change places, and the scores are means over both.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from result_tables import ROOT, write_rows
from torch import Tensor

from tailshift import Predictions, post_compensate, priors
from tailshift.calibration import TemperatureScaling
from tailshift.estimators import MAPEstimator
from tailshift.evaluation.sampling import shifted_subset
from tailshift.metrics import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from tailshift.targets import PAPER_TARGETS, target_counts

RESULTS = ROOT / "results"
ESTIMATED = ("forward:50", "forward:10", "uniform", "backward:10", "backward:50")
"""The targets that are also answered without being told."""

Case = tuple[str, str, str]
"""Target, the prior that is answered for, and the temperature."""


def halves(predictions: Predictions) -> tuple[Predictions, Predictions]:
    """Return every other image of each class, and the rest, with uniform logits."""
    f, y = predictions.logits.float(), predictions.labels
    uniform = priors.uniform(f.shape[1])
    f = post_compensate(f, logit_prior=predictions.logit_prior, target_prior=uniform)
    order = torch.argsort(y, stable=True)
    return tuple(
        Predictions(f[part], y[part], predictions.source_counts, uniform)
        for part in (order[0::2], order[1::2])
    )


def scores(f: Tensor, y: Tensor) -> dict[str, float]:
    """Return all that is measured, accuracy in percent."""
    return {
        "accuracy": 100 * accuracy(f, y),
        "ece": expected_calibration_error(f, y),
        "nll": negative_log_likelihood(f, y),
        "brier": brier_score(f, y),
    }


def measure(
    labelled: Predictions, test: Predictions, carried: Tensor
) -> Iterator[tuple[Case, dict[str, float]]]:
    """Yield scores by target, prior answered for, and temperature."""
    scaling = TemperatureScaling().fit(labelled.logits, labelled.labels)
    estimator = MAPEstimator(calibrator="temperature", center="uniform")
    estimator.fit(labelled.logits, labelled.labels)
    per_class = torch.bincount(test.labels)
    for target in PAPER_TARGETS:
        counts = target_counts(target, test.source_counts, per_class)
        chosen = shifted_subset(test.labels, counts)
        f, y = test.logits[chosen], test.labels[chosen]
        answered = {"carried": carried, "known": priors.from_counts(counts)}
        if target in ESTIMATED:
            answered["estimated"] = estimator.estimate(f)
        for way, prior in answered.items():
            for temperature, g in (("1", f), ("fitted", scaling.transform(f))):
                yield (target, way, temperature), scores(g + prior.log(), y)


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield a row for each case of a file of logits, the mean over both halves."""
    predictions = Predictions.load(path)
    first, second = halves(predictions)
    measured: dict[Case, list[dict[str, float]]] = defaultdict(list)
    for labelled, test in ((first, second), (second, first)):
        for case, own in measure(labelled, test, predictions.logit_prior):
            measured[case].append(own)
    run, _, seed = path.stem.rpartition("-seed")
    for case, both in measured.items():
        about = dict(zip(("target", "prior", "temperature"), case, strict=True))
        means = {key: f"{fmean(own[key] for own in both):.4f}" for key in both[0]}
        yield {"run": run, "seed": seed, **about, **means}


def main() -> None:
    """Write one row for each run, target, prior and temperature."""
    found: list[dict[str, str]] = []
    for path in sorted((RESULTS / "logits").glob("*.safetensors")):
        if "_lite0_" not in path.name:
            sys.stdout.write(f"{path.stem}\n")
            found += rows(path)
    write_rows(RESULTS / "calibration.csv", found)


if __name__ == "__main__":
    main()
