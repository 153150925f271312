"""Draw the figures of README and docs from ``results/logits/``.

Run ``python docs/figures.py`` to write ``docs/images/``, all of the paper's recipe of
200 epochs: its Figures 2 and 3 at imbalance ratio 100, its Figure 6 and accuracy
against the target's shift at ratio 50. What Figures 2 and 3 show is also printed.
"""

import sys
from pathlib import Path

from tailshift import reproduce
from tailshift.report.plots import (
    FIGURES,
    class_logits,
    probability_curves,
    save_figure,
)
from tailshift.report.runs import ReportRun

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "results"
DPI = 200
MAIN = ("softmax", "balanced_softmax", "lade")
"""The methods of accuracy against the target's shift, in their order."""


def kept_runs(what: str) -> list[ReportRun]:
    """Return what one of the paper's figures is drawn from, as far as it is kept."""
    logits = RESULTS / "logits"
    return reproduce(what, runs=RESULTS, logits=logits, dry_run=True).runs()


def main() -> None:
    """Write the figures and print what Figures 2 and 3 show."""
    compared = kept_runs("figure6")
    methods = [run for key in MAIN for run in compared if run.key == key]
    averaged = kept_runs("figure2")
    for curve in probability_curves(averaged):
        head, tail = (100 * end for end in curve.ends())
        sys.stdout.write(
            f"{curve.name}: {head:.2f} % a class over the ten most frequent classes, "
            f"{tail:.2f} % over the ten rarest\n"
        )
    by_alpha = kept_runs("figure3")
    for name in dict.fromkeys(run.method for run in by_alpha):
        found = class_logits([r.predictions for r in by_alpha if r.method == name])
        positive, negative = found.positive_mean.mean(), found.negative_mean.mean()
        sys.stdout.write(
            f"{name}: mean logit {positive:.1f} of positive samples, {negative:.1f} of "
            f"negative ones\n"
        )
    drawn = {
        "average_probability": averaged,
        "class_logits": by_alpha,
        "reliability": compared,
        "target_shift": methods,
    }
    for name, runs in drawn.items():
        figure = FIGURES.get(name)(runs, "uniform")
        save_figure(figure, [IMAGES / f"{name}.png"], overwrite=True, dpi=DPI)


if __name__ == "__main__":
    main()
