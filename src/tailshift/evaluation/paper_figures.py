"""The paper's figures: which classifiers each of them shows, and their recipes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One classifier of a figure."""

    title: str
    recipe: str
    alpha: float | None = None
    """LADE's α where it is not the recipe's."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, and what it is drawn from."""

    number: int
    title: str
    name: str
    """Key of :data:`tailshift.report.plots.FIGURES`."""
    panels: tuple[Panel, ...]


def _compared(pattern: str) -> tuple[Panel, ...]:
    """Return the methods of the reliability diagrams, with their recipes."""
    methods = {
        "Causal Norm": "causal_norm",
        "Balanced Softmax": "balanced_softmax",
        "Softmax": "softmax",
        "LADE": "lade",
    }
    return tuple(Panel(t, pattern.format(name)) for t, name in methods.items())


_LADE = "cifar100_lt_ir100_lade"
PAPER_FIGURES = {
    f"figure{figure.number}": figure
    for figure in (
        PaperFigure(
            2,
            "Average probability of each class on the balanced test set, CIFAR-100-LT",
            "average_probability",
            (Panel("Softmax", "cifar100_lt_ir100_softmax"), Panel("LADE", _LADE)),
        ),
        PaperFigure(
            3,
            "Logits of each class as α grows, CIFAR-100-LT, imbalance ratio 100",
            "class_logits",
            (
                Panel("LADE (α = 0)", f"{_LADE}_alpha0"),
                Panel("LADE (α = 0.01)", _LADE, 0.01),
                Panel("LADE (α = 0.1)", _LADE),
                Panel("LADE (α = 1)", _LADE, 1.0),
            ),
        ),
        PaperFigure(
            4,
            "Reliability diagrams, ImageNet-LT",
            "reliability",
            _compared("imagenet_lt_{}_180ep"),
        ),
        PaperFigure(
            6,
            "Reliability diagrams, CIFAR-100-LT, imbalance ratio 50",
            "reliability",
            _compared("cifar100_lt_ir50_{}"),
        ),
    )
}
"""The figures that can be reproduced. Figure 3's values of α are ours around the
recipe's 0.1: the paper's text does not name those it shows."""
