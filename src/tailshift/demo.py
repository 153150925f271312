"""The demonstration: the paper's claim on real images in about a minute."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tailshift import priors
from tailshift.calibration import TemperatureScaling
from tailshift.compensation import post_compensate
from tailshift.evaluation import Summary, evaluate
from tailshift.methods import METHODS, Method
from tailshift.models.pretrained import INSTALL, weights_at_hand
from tailshift.predictions import Predictions
from tailshift.recipes import data_settings, feature_settings, load_recipe
from tailshift.report import report
from tailshift.report.runs import report_run, summarise_runs
from tailshift.runs.run import Run, load_run
from tailshift.training import train
from tailshift.training.jobs import Job, num_at_once, run_jobs

DEMO_METHODS = ("softmax", "balanced_softmax", "lade")
SEEDS = (0, 1, 2)
HEAD_METHODS = tuple(
    name for name in METHODS.names() if METHODS.get(name).branch is Method.branch
)
"""Methods that train a head on any features: those without branches."""
HARDEST = "backward:50"
"""The target that long-tailed training is furthest from."""


def run_demo(
    output: Path,
    *,
    methods: Sequence[str] = DEMO_METHODS,
    seeds: Sequence[int] = SEEDS,
    data: str | None = None,
    jobs: int = 1,
    announce: Callable[[str], None] = lambda text: None,
) -> tuple[list[Summary], Path]:
    """Train each method with each seed; write ``table.csv`` and ``report.html``.

    Args:
        output: A folder that does not exist yet.
        methods: Registered names.
        seeds: One run of each method for each.
        data: One's own images, as ``folder:PATH``: heads are trained on features of
            ImageNet weights; None for the digits.
        jobs: Number of runs at once, each in a process of its own if there are several;
            0 is one for each GPU or core.
        announce: Called with a sentence before each training.

    Returns:
        The table's rows, and the path of the report.
    """
    if output.exists():
        raise FileExistsError(
            f"`output` {output} exists. Name a new folder (--output)."
        )
    recipe, settings = ("digits_lt", []) if data is None else _own_images(data)
    planned = {
        method: [
            Job(
                load_recipe(recipe, [f"method.name={method}", f"seed={s}", *settings]),
                output / "runs" / f"{method}-seed{s}",
            )
            for s in seeds
        ]
        for method in methods
    }
    at_once = num_at_once(jobs, len(methods) * len(seeds))
    if at_once > 1:
        trained = _train_at_once(
            [job for row in planned.values() for job in row], at_once
        )
    else:
        trained = _train(planned, announce)
    runs = [report_run(run) for run in trained]
    title = "Handwritten digits, imbalance ratio 50" if data is None else data
    page = report(runs, output, title=title)
    return summarise_runs(runs), page


def _own_images(data: str) -> tuple[str, list[str]]:
    """Return the recipe and the settings of a head on features of one's own images."""
    recipe, chosen = "own_images", data_settings(data)
    network = weights_at_hand()
    if not network:
        raise ModuleNotFoundError(
            "`data` needs ImageNet weights for its features, but none are at hand. "
            f"Install them with `{INSTALL}`."
        )
    features = feature_settings(str(network.get("weights", network["name"])))
    return recipe, [*chosen, *features]


def _train(
    planned: Mapping[str, Sequence[Job]], announce: Callable[[str], None]
) -> list[Run]:
    runs = []
    for method, jobs in planned.items():
        seeds = ", ".join(str(job.config.seed) for job in jobs)
        announce(f"training {method} with seeds {seeds}")
        for job in jobs:
            run = train(job.config, output=job.directory)
            if not run.is_finished:
                raise KeyboardInterrupt
            runs.append(run)
    return runs


def _train_at_once(jobs: Sequence[Job], at_once: int) -> list[Run]:
    failures = run_jobs(jobs, at_once, advice="interrupted.")
    if failures:
        raise ChildProcessError("\n".join(map(str, failures)))
    return [load_run(job.directory) for job in jobs]


def why_not_helped(output: Path) -> list[str]:
    """Return a sentence for each run that compensation does not help where it matters.

    Args:
        output: A demonstration's folder.
    """
    runs = map(load_run, sorted((output / "runs").glob("*")))
    return [sentence for run in runs if (sentence := _why_not_helped(run))]


def _why_not_helped(run: Run) -> str:
    """Return why a run is no better for compensation to the hardest target, if so."""
    raw, compensated = evaluate(run.predictions(), [HARDEST])
    if compensated.accuracy > raw.accuracy:
        return ""
    method, temperature = run.config.method, _temperature(run.predictions("val"))
    return (
        f"{method.title} with seed {run.config.seed}: on {HARDEST.replace(':', ' ')} "
        f"compensation gives {100 * compensated.accuracy:.1f} % instead of "
        f"{100 * raw.accuracy:.1f} % ({raw.num_samples} images). It takes the logits "
        f"to carry a prior ({method.prior}) and to be log-probabilities, but on "
        f"validation images they are so only when divided by {temperature:.2g}."
    )


def _temperature(predictions: Predictions) -> float:
    """Return what logits, compensated to their labels' prior, are best divided by."""
    prior = predictions.logit_prior
    assert prior is not None
    present = priors.from_labels(predictions.labels, predictions.num_classes)
    logits = post_compensate(
        predictions.logits, logit_prior=prior, target_prior=present
    )
    return TemperatureScaling().fit(logits, predictions.labels).temperature_


def next_folder(parent: Path) -> Path:
    """Return ``parent/demo-N`` with the first N that is free."""
    number = 1
    while (parent / f"demo-{number}").exists():
        number += 1
    return parent / f"demo-{number}"
