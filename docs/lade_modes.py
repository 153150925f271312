"""Print how LADE's modes differ from Balanced Softmax, from ``results/v0_1/logits/``.

Run ``python docs/lade_modes.py``; the table stands in ``docs/results.md``.
"""

import sys
from pathlib import Path

import torch

from tailshift import Predictions
from tailshift.metrics import class_groups

LOGITS = Path(__file__).parents[1] / "results" / "v0_1" / "logits"
RUNS = {
    "Balanced Softmax": "cifar100_lt_ir100_balanced_softmax_quick-seed0",
    "LADE, paper": "cifar100_lt_ir100_lade_quick-paper-seed0",
    "LADE, paper, α = 0.01": "cifar100_lt_ir100_lade_quick-paper-alpha0.01-seed0",
    "LADE, paper, α_c = 1/C": (
        "cifar100_lt_ir100_lade_quick-paper-class_weightsuniform-seed0"
    ),
    "LADE, official": "cifar100_lt_ir100_lade_quick-official-seed0",
}


def main() -> None:
    """Print one line a run."""
    base: torch.Tensor | None = None
    for name, file in RUNS.items():
        predictions = Predictions.load(LOGITS / f"{file}.safetensors")
        f, y = predictions.logits.float(), predictions.labels  # (N, C), (N,)
        correct = (f.argmax(1) == y).double()
        base = correct if base is None else base
        gain = correct - base  # paired, image by image
        error = gain.std() / len(gain) ** 0.5
        groups = [
            100 * correct[torch.isin(y, classes)].mean()
            for classes in class_groups(predictions.source_counts).values()
        ]
        t = f.logsumexp(0) - torch.tensor(len(f)).log()  # log E[e^f], (C,)
        own = f[torch.arange(len(f)), y].mean()
        sys.stdout.write(
            f"{name}: all {100 * correct.mean():.1f}, many/medium/few "
            f"{' / '.join(f'{group:.1f}' for group in groups)}, difference "
            f"{100 * gain.mean():+.2f} ± {100 * error:.2f}, log E[e^f] "
            f"{t.mean():.1f} ± {t.std():.1f}, true logit {own:.1f}\n"
        )


if __name__ == "__main__":
    main()
