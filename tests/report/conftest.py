"""Synthetic runs: noisy logits around the truth; and a browser to look at pages in."""

import shutil
from collections.abc import Callable, Iterator

import pytest
import torch

from tailshift import priors
from tailshift.predictions import Predictions
from tailshift.report import ReportRun

METHODS = ("Softmax", "Balanced Softmax", "LADE")
NUM_CLASSES, PER_CLASS = 10, 50
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

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


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Return a headless Chromium from the operating system's packages."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: no browser to drive"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH to open the page in")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
