"""The scores of a grid search over α and λ as a heat map."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tailshift.files import atomic_write
from tailshift.report.tuning import grid_values
from tailshift.training.journal import Trial, best_trial

CELL = 0.75  # inches


def heat_map(trials: Sequence[Trial], *, title: str) -> Figure:
    """Return the figure: α down, λ across, the best setting framed.

    Args:
        trials: The settings and their scores; a diverged one is left blank.
        title: The figure's.
    """
    alphas, lams = grid_values(trials)
    scores = np.full((len(alphas), len(lams)), np.nan)
    for trial in trials:
        cell = alphas.index(trial.alpha), lams.index(trial.lam)
        scores[cell] = 100 * trial.score
    size = (CELL * len(lams) + 2, CELL * len(alphas) + 1.5)
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
    axes: Axes, scores: np.ndarray[tuple[int, int], np.dtype[np.float64]]
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
