"""A grid search as a table for the terminal and as CSV."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.files import atomic_write
from tailshift.report.rows import NOTHING
from tailshift.training.journal import Trial, best_trial

TITLE = "Class-balanced validation accuracy in %"


def tuning_table(trials: Sequence[Trial]) -> Table:
    """Return the scores in %, a line for each α and a column for each λ; best bold."""
    best = best_trial(trials)
    scores = {(trial.alpha, trial.lam): trial for trial in trials}
    alphas, lams = grid_values(trials)
    table = Table(
        title=TITLE,
        min_width=len(TITLE),  # or it would wrap
        caption=f"best: {best}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("α")
    for lam in lams:
        table.add_column(f"λ = {lam:g}", justify="right", no_wrap=True)
    for alpha in alphas:
        cells = [scores.get((alpha, lam)) for lam in lams]
        table.add_row(f"{alpha:g}", *(_cell(trial, best) for trial in cells))
    return table


def write_tuning_csv(path: Path, trials: Sequence[Trial]) -> None:
    """Write one line a setting: alpha, lam, and the score in percent or nothing."""
    with (
        atomic_write(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["alpha", "lam", "score"])
        for trial in trials:
            score = "" if math.isnan(trial.score) else f"{100 * trial.score:.2f}"
            writer.writerow([f"{trial.alpha:g}", f"{trial.lam:g}", score])


def grid_values(trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
    """Return the values of α and of λ, ascending.

    Example:
        >>> grid_values([Trial(0.1, 0.5, 0.8), Trial(0.01, 0.5, 0.7)])
        ([0.01, 0.1], [0.5])
    """
    alphas = {trial.alpha for trial in trials}
    return sorted(alphas), sorted({trial.lam for trial in trials})


def _cell(trial: Trial | None, best: Trial) -> Text:
    if trial is None or math.isnan(trial.score):
        return Text(NOTHING)
    return Text(f"{100 * trial.score:.1f}", style="bold" if trial == best else "")
