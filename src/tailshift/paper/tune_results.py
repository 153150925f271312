"""Results of the search over α and λ as a table, a CSV file and a heat map."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.files import atomic_write
from tailshift.metrics.table import NOTHING
from tailshift.paper.tune import Trial, best_trial, is_told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Class-balanced validation accuracy in %"


def tuning_table(trials: Sequence[Trial]) -> Table:
    """Return the scores in %, a line for each α and a column for each λ; best bold."""
    best = best_trial(trials)
    scores = {(trial.alpha, trial.lam): trial for trial in trials}
    alphas, lams = grid_values(trials)
    table = Table(
        title=_TITLE,
        min_width=len(_TITLE),  # or it would wrap
        caption=_caption(trials, best),
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


def _caption(trials: Sequence[Trial], best: Trial) -> str:
    """Name the best setting, and how many others the images do not tell from it."""
    compared = [trial for trial in trials if not math.isnan(trial.error)]
    if not compared:
        return f"best: {best}"
    level = sum(not is_told_apart(trial, best) for trial in compared)
    return f"best: {best}\n{level} of {len(compared)} others within two standard errors"


def write_tuning_csv(path: Path, trials: Sequence[Trial]) -> None:
    """Write one line a setting: alpha, lam, score and error in percent or nothing."""
    with (
        atomic_write(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["alpha", "lam", "score", "error"])
        for trial in trials:
            percent = [
                "" if math.isnan(share) else f"{100 * share:.2f}"
                for share in (trial.score, trial.error)
            ]
            writer.writerow([f"{trial.alpha:g}", f"{trial.lam:g}", *percent])


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


_CELL = 0.75  # inches


def heat_map(trials: Sequence[Trial], *, title: str) -> "Figure":
    """Return the figure: α down, λ across, the best setting framed.

    Args:
        trials: The settings and their scores; a diverged one is left blank.
        title: The figure's.
    """
    from matplotlib.figure import Figure  # Matplotlib takes a while
    from matplotlib.patches import Rectangle

    alphas, lams = grid_values(trials)
    scores = np.full((len(alphas), len(lams)), np.nan)
    for trial in trials:
        cell = alphas.index(trial.alpha), lams.index(trial.lam)
        scores[cell] = 100 * trial.score
    size = (_CELL * len(lams) + 2, _CELL * len(alphas) + 1.5)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(scores, cmap="cividis", aspect="auto")
    figure.colorbar(image, ax=axes, label="class-balanced validation accuracy in %")
    axes.set_xticks(range(len(lams)), [f"{lam:g}" for lam in lams])
    axes.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.set(xlabel="λ", ylabel="α", title=title)
    _write_scores(axes, scores)
    best = best_trial(trials)
    corner = lams.index(best.lam) - 0.5, alphas.index(best.alpha) - 0.5
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", lw=3))
    return figure


def _write_scores(
    axes: "Axes", scores: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> None:
    middle = (np.nanmin(scores) + np.nanmax(scores)) / 2
    for (row, column), score in np.ndenumerate(scores):
        text = "–" if math.isnan(score) else f"{score:.1f}"
        colour = "white" if score < middle else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour)


def save_heat_map(path: Path, trials: Sequence[Trial], *, title: str) -> list[Path]:
    """Write the heat map as SVG and as PNG; return both paths.

    Args:
        path: Without suffix, or with one that is replaced.
        trials: The settings and their scores.
        title: The figure's.
    """
    from matplotlib import rc_context

    figure = heat_map(trials, title=title)
    paths = [Path(path).with_suffix(suffix) for suffix in (".svg", ".png")]
    # The same scores give the same bytes: no date, no random identifiers.
    with rc_context({"svg.hashsalt": "tailshift", "svg.fonttype": "none"}):
        for file in paths:
            kind = file.suffix.removeprefix(".")
            metadata = {"Date": None} if kind == "svg" else {}
            with atomic_write(file) as temporary:
                figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)
    return paths
