"""Print the declared and the measured prior of saved logits, and their accuracies.

Run ``python experiments/carried_prior.py``; ``docs/evaluation.md`` has the table. It
reads ``results/logits/``. 30 of the 100 test images of each class are held out, the
other 70 are scored. ``--source`` thins the held-out images to the training prior.
"""

import sys

import torch
from result_tables import ROOT
from torch import Tensor

from tailshift import Predictions, measure_logit_prior, priors
from tailshift.estimators import declared_kappa
from tailshift.metrics import accuracy

LOGITS = ROOT / "results" / "logits"
NUM_HELD_OUT = 30
KAPPAS = [k / 10 for k in range(-10, 16)]


def split(predictions: Predictions, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return which samples are held out, and which are scored, both shape (N,).

    Args:
        predictions: Logits and labels of a balanced test set.
        counts: Held-out samples of each class, at most 30, shape (C,).
    """
    y = predictions.labels
    own = torch.nn.functional.one_hot(y)  # (N, C)
    place = (own.cumsum(0) * own).sum(1)  # 1 for the first of a class
    return place <= counts[y], place > NUM_HELD_OUT


def row(predictions: Predictions, *, is_thinned: bool) -> str:
    """Return the cells of a line: κ declared, measured and best, and accuracies."""
    f, y, p = predictions.logits.double(), predictions.labels, predictions.logit_prior
    p_s = priors.from_counts(predictions.source_counts)
    counts = torch.full(p_s.shape, NUM_HELD_OUT)
    if is_thinned:
        counts = (NUM_HELD_OUT * p_s / p_s.max()).round().clamp_min(1)
    known, rest = split(predictions, counts)
    found = measure_logit_prior(f[known], y[known], p_s)

    def score(log_prior: Tensor) -> float:
        return 100 * accuracy((f - log_prior)[rest], y[rest])

    best = max(KAPPAS, key=lambda k: score(k * p_s.log()))
    low, high = found.interval
    return (
        f"{abs(declared_kappa(p, p_s)):.0f} | {found.kappa:.2f} ({low:.2f} to "
        f"{high:.2f}) | {best:.1f} | {score(p.log()):.1f} | "
        f"{score(found.kappa * p_s.log()):.1f} | {score(found.prior.log()):.1f}"
    )


def main() -> None:
    """Print one line a file."""
    for path in sorted(LOGITS.glob("cifar100_lt_ir100_*seed0.safetensors")):
        name = path.stem.removeprefix("cifar100_lt_ir100_").removesuffix("-seed0")
        cells = row(Predictions.load(path), is_thinned="--source" in sys.argv)
        sys.stdout.write(f"| `{name}` | {cells} |\n")


if __name__ == "__main__":
    main()
