"""Draw the README's figures from ``results/v0_1/logits/``.

Run ``python docs/figures.py`` to write ``docs/images/average_probability.png`` and
``docs/images/target_shift.png``, and to print what Figure 2 shows in numbers.
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
from tailshift.report.runs import run_from_logits

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RUNS = {
    "Softmax": "cifar100_lt_ir100_softmax_quick-seed0",
    "Balanced Softmax": "cifar100_lt_ir100_balanced_softmax_quick-seed0",
    "LADE": "cifar100_lt_ir100_lade_quick-paper-seed0",
}
DPI = 200


def main() -> None:
    """Write both figures and print the ends of each curve."""
    folder = ROOT / "results" / "v0_1" / "logits"
    runs = [
        run_from_logits(f"{name}={folder / file}.safetensors")
        for name, file in RUNS.items()
    ]
    for curve in probability_curves(runs):
        head, tail = (100 * end for end in curve.ends())
        sys.stdout.write(
            f"{curve.name}: {head:.2f} % a class over the ten most frequent classes, "
            f"{tail:.2f} % over the ten rarest\n"
        )
    drawn = {
        "average_probability": average_probability_plot(runs),
        "target_shift": target_shift_plot(summarise_shifts(runs)),
    }
    for name, figure in drawn.items():
        save_figure(figure, [IMAGES / f"{name}.png"], overwrite=True, dpi=DPI)


if __name__ == "__main__":
    main()
