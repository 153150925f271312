"""Overview of the runs below a folder."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tailshift.metrics.accuracy import accuracy
from tailshift.predictions import Predictions
from tailshift.runs.files import FACTS, FAILURE
from tailshift.runs.run import Run, load_run

__all__ = ["RunOverview", "list_runs"]


@dataclass(frozen=True)
class RunOverview:
    """State and score of a run."""

    directory: str
    state: str
    """``"running"``, ``"interrupted"``, ``"diverged"`` or ``"finished"``, as recorded.
    A run that was killed stays ``"running"``."""
    recipe: str
    method: str
    seed: int
    epochs: int
    """Number of epochs done."""
    accuracy: float
    """Accuracy on the test set as trained, in [0, 1]; NaN without test logits."""
    balanced_accuracy: float
    """Mean of the classes' accuracies, in [0, 1]; NaN without test logits."""


def list_runs(
    folder: str | Path, announce: Callable[[str], None] = lambda text: None
) -> list[RunOverview]:
    """Return an overview of each run below a folder, the latest last.

    Args:
        folder: The folder, searched at any depth.
        announce: Called with a sentence about each run that cannot be read.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    return list(_overviews(Path(folder), announce))


def _overviews(folder: Path, announce: Callable[[str], None]) -> Iterator[RunOverview]:
    for path in sorted(folder.rglob(FACTS), key=lambda path: path.stat().st_mtime):
        try:
            yield _overview(load_run(path.parent))
        except (OSError, ValueError) as error:
            announce(f"skipped: {error}")


def _overview(run: Run) -> RunOverview:
    has_failed = (run.directory / FAILURE).is_file() and not run.is_finished
    plain, balanced = _scores(run)
    return RunOverview(
        str(run.directory),
        "diverged" if has_failed else run.facts.state,
        run.config.recipe,
        run.config.method_name,
        run.config.seed,
        run.facts.epochs_done,
        plain,
        balanced,
    )


def _scores(run: Run) -> tuple[float, float]:
    try:
        predictions = run.predictions("test")
    except FileNotFoundError:
        return math.nan, math.nan
    f, y = predictions.logits, predictions.labels
    return accuracy(f, y), accuracy(f, y, sample_weights=_balancing(predictions))


def _balancing(predictions: Predictions) -> torch.Tensor:
    """Return weights with which every class counts the same, shape (N,)."""
    y = predictions.labels
    return 1 / torch.bincount(y, minlength=predictions.num_classes)[y].double()
