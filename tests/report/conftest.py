"""Synthetic runs: noisy logits around the truth; and a browser to look at pages in."""

from collections.abc import Callable

import pytest
import torch

from tailshift import priors
from tailshift.predictions import Predictions
from tailshift.report import ReportRun

METHODS = ("Softmax", "Balanced Softmax", "LADE")
NUM_CLASSES, PER_CLASS = 10, 50

MakeRuns = Callable[..., list[ReportRun]]


def _predictions(method: str, seed: int, class_names: tuple[str, ...]) -> Predictions:
    generator = torch.Generator().manual_seed(1000 * METHODS.index(method) + seed)
    counts = priors.long_tailed_counts(200, 50, NUM_CLASSES)
    y = torch.arange(NUM_CLASSES).repeat_interleave(PER_CLASS)
    f = 1.5 * torch.randn(len(y), NUM_CLASSES, generator=generator)
    f[torch.arange(len(y)), y] += 3.0
    prior = priors.uniform(NUM_CLASSES)
    if method == "Softmax":
        prior = priors.from_counts(counts)
    f += prior.log().float()
    return Predictions(f, y, counts, prior, class_names)


@pytest.fixture(scope="session")
def make_runs() -> MakeRuns:
    def make(
        methods: tuple[str, ...] = METHODS,
        num_seeds: int = 3,
        class_names: tuple[str, ...] = (),
    ) -> list[ReportRun]:
        return [
            ReportRun(
                method,
                seed,
                _predictions(method, seed, class_names),
                key=method.lower().replace(" ", "_"),
                compensates=method == "LADE",
                unit="images",
            )
            for method in methods
            for seed in range(num_seeds)
        ]

    return make
