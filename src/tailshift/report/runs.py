"""What a report is made of: the predictions of a classifier, its title, its origin."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tailshift.evaluation import Record, Sampling, Summary, evaluate, summarise
from tailshift.methods import Method
from tailshift.predictions import Predictions
from tailshift.priors import from_counts, uniform
from tailshift.runs.run import Run
from tailshift.targets import PAPER_TARGETS


@dataclass(frozen=True)
class ReportRun:
    """One run: a method, its seed and what it predicted for the test set."""

    method: str
    """Display name, as the tables show it: ``"LADE"``."""
    seed: int
    """Runs of a method that differ in the seed are averaged."""
    predictions: Predictions
    """Logits and labels of the test set, with the priors they go by."""
    name: str = ""
    """Where the predictions came from, e.g. the run directory; shown as it is."""


SYMBOLS = {"alpha": "α", "beta": "β", "gamma": "γ", "lam": "λ", "tau": "τ"}


def distinct_titles(methods: Sequence[Method]) -> list[str]:
    """Return a title for each method; settings in which namesakes differ are added.

    Example:
        >>> from tailshift.recipes import load_recipe
        >>> lade = [f"method.alpha={alpha}" for alpha in (0.01, 0.1)]
        >>> changes = [["method.name=lade", change] for change in lade]
        >>> distinct_titles([load_recipe("digits_lt", c).method for c in changes])
        ['LADE (α = 0.01)', 'LADE (α = 0.1)']
    """
    titles = []
    for method in methods:
        namesakes = [asdict(m) for m in methods if m.title == method.title]
        differing = [
            f"{SYMBOLS.get(key, key)} = {_text(value)}"
            for key, value in asdict(method).items()
            if any(other.get(key) != value for other in namesakes)
        ]
        ending = f" ({', '.join(differing)})" if differing else ""
        titles.append(method.title + ending)
    return titles


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


CarriedPrior: TypeAlias = Literal["source", "uniform"]
"""What a file may leave unsaid: the prior of the training set, or the uniform one."""


def run_from_logits(
    file: str | Path, *, trained_prior: CarriedPrior | None = None
) -> ReportRun:
    """Return the predictions in a file as a run to report on.

    Args:
        file: A path for :meth:`Predictions.load`, or ``"NAME=PATH"``. Without a name
            the file's own is shown; one that ends in ``-seed1`` gives the seed.
        trained_prior: The prior that the logits carry, where the file does not say.

    Example:
        >>> from tempfile import mkdtemp
        >>> import torch
        >>> path = Path(mkdtemp()) / "forest-seed2.safetensors"
        >>> Predictions(torch.eye(2), torch.arange(2)).save(path)
        >>> run = run_from_logits(path)
        >>> run.method, run.seed
        ('forest', 2)
    """
    name, path = _split(str(file))
    predictions = Predictions.load(path)
    if trained_prior is not None and predictions.trained_prior is None:
        predictions = _with_prior(predictions, trained_prior, path)
    stem, seed = _seed(path.stem)
    return ReportRun(name or stem, seed, predictions, name=str(path))


def is_logits_file(file: str) -> bool:
    """Say whether this is a file, with or without ``NAME=`` before it."""
    return _split(file)[1].is_file()


def _split(file: str) -> tuple[str, Path]:
    name, _, path = file.rpartition("=")
    if not name or Path(file).exists():
        return "", Path(file)
    return name, Path(path)


def _seed(stem: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)-seed(\d+)", stem)
    return (match[1], int(match[2])) if match else (stem, 0)


def _with_prior(
    predictions: Predictions, trained_prior: CarriedPrior, path: Path
) -> Predictions:
    if trained_prior == "uniform":
        return replace(predictions, trained_prior=uniform(predictions.num_classes))
    if predictions.source_counts is None:
        raise ValueError(
            "`trained_prior` 'source' is the prior of the training set, but "
            f"{path} holds no `source_counts`. Add them to the file."
        )
    return replace(predictions, trained_prior=from_counts(predictions.source_counts))


def report_run(run: Run, split: str = "test") -> ReportRun:
    """Return a finished run as reports and tables take it."""
    return ReportRun(
        method=run.config.method.title,
        seed=run.config.seed,
        predictions=run.predictions(split),
        name=str(run.directory),
    )


def summarise_runs(
    runs: Sequence[ReportRun],
    targets: Sequence[str] = PAPER_TARGETS,
    *,
    metrics: Sequence[str] = ("accuracy",),
    sampling: Sampling = "first",
    repeats: int = 10,
) -> list[Summary]:
    """Return mean and spread over the seeds of each method, target by target.

    Args:
        runs: Of any methods and seeds.
        targets: This and those below are as :func:`~tailshift.evaluation.evaluate` has
            them.
        metrics: Scores of the records, one list of summaries after the other.
        sampling: How test sets are drawn.
        repeats: How many random ones.
    """
    records: dict[str, list[list[Record]]] = {}
    for run in runs:
        found = evaluate(run.predictions, targets, sampling=sampling, repeats=repeats)
        records.setdefault(run.method, []).append(found)
    return [summary for metric in metrics for summary in summarise(records, metric)]
