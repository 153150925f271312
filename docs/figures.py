"""Draw the README's figures.

Run ``python docs/figures.py`` to write ``docs/images/average_probability.png`` from
``results/v0_1/logits/`` and ``docs/images/target_shift.png`` from ``results/logits/``,
and to print what Figure 2 shows in numbers.
"""

import sys
from pathlib import Path

from tailshift.report.plots import (
    average_probability_plot,
    probability_curves,
    save_figure,
    target_shift_plot,
)
from tailshift.report.plots.writing import summarise_shifts
from tailshift.report.runs import ReportRun, run_from_logits

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "results"
DPI = 200


def load_runs(folder: Path, mode: str) -> list[ReportRun]:
    """Return the logits of three methods, LADE's in one of its modes."""
    files = {
        "Softmax": "softmax_quick-seed0",
        "Balanced Softmax": "balanced_softmax_quick-seed0",
        "LADE": f"lade_quick-{mode}-seed0",
    }
    return [
        run_from_logits(f"{name}={folder / f'cifar100_lt_ir100_{file}.safetensors'}")
        for name, file in files.items()
    ]


def main() -> None:
    """Write both figures and print the ends of each curve."""
    old = load_runs(RESULTS / "v0_1" / "logits", "paper")
    new = load_runs(RESULTS / "logits", "official")
    for curve in probability_curves(old):
        head, tail = (100 * end for end in curve.ends())
        sys.stdout.write(
            f"{curve.name}: {head:.2f} % a class over the ten most frequent classes, "
            f"{tail:.2f} % over the ten rarest\n"
        )
    drawn = {
        "average_probability": average_probability_plot(old),
        "target_shift": target_shift_plot(summarise_shifts(new)),
    }
    for name, figure in drawn.items():
        save_figure(figure, [IMAGES / f"{name}.png"], overwrite=True, dpi=DPI)


if __name__ == "__main__":
    main()
