"""Draw the README's picture: one model as trained and re-targeted.

Run ``python docs/retarget_figure.py`` to write ``docs/images/retargeting.png`` from
``results/logits/``: Softmax of the paper's recipe, CIFAR-100-LT, imbalance ratio 100.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tailshift import Predictions, evaluate

ROOT = Path(__file__).parents[1]
LOGITS = ROOT / "results" / "logits" / "cifar100_lt_ir100_softmax-seed0.safetensors"
PICTURE = ROOT / "docs" / "images" / "retargeting.png"
BLUE, ORANGE = "#0072b2", "#d55e00"


def accuracies() -> tuple[list[str], dict[bool, list[float]]]:
    """Return the targets, and accuracy in percent by whether it is re-targeted."""
    records = evaluate(Predictions.load(LOGITS))
    targets = list(dict.fromkeys(record.target for record in records))
    lines: dict[bool, list[float]] = {False: [], True: []}
    for record in records:
        lines[record.compensated].append(100 * record.accuracy)
    return targets, lines


def draw(axes: Axes) -> None:
    """Draw both lines, and shade and label the gap."""
    targets, lines = accuracies()
    x = list(range(len(targets)))
    axes.fill_between(x, lines[False], lines[True], color=BLUE, alpha=0.15, lw=0)
    for is_retargeted, name, color in (
        (True, "re-targeted", BLUE),
        (False, "as trained", ORANGE),
    ):
        axes.plot(x, lines[is_retargeted], "o-", color=color, ms=4, lw=2)
        y = lines[is_retargeted][-1]
        axes.annotate(
            f"{name}\n{y:.1f} %",
            (x[-1] + 0.15, y),
            color=color,
            va="center",
            weight="bold",
        )
    gain = lines[True][-1] - lines[False][-1]
    middle = (lines[True][-2] + lines[False][-2]) / 2
    axes.annotate(
        f"+{gain:.0f} points,\nsame weights",
        (x[-1] - 1, middle),
        ha="center",
        va="center",
    )
    axes.set_xticks(x, [target.replace(":", "\n") for target in targets], fontsize=8)
    axes.set_xlim(-0.3, x[-1] + 1.6)
    axes.set_ylim(0, 70)
    axes.set_ylabel("accuracy in %")
    axes.set_xlabel(
        "class distribution of the test set: from the training order (forward) "
        "to its reverse (backward)"
    )
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the picture."""
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    draw(axes)
    figure.savefig(PICTURE, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
