"""Score CIFAR-LT runs on the training images that the long tail leaves out.

Run ``python experiments/unused_images.py DATA_ROOT RUN…``. It adds a row per run to
``results/unused_images.csv``, and ``python docs/tables.py`` fills the table of
``docs/results.md`` from it.

A tenth of a long tail's images cannot choose a setting: of a class of five it is one.
The public training set has 500 images of every class, of which CIFAR-100-LT at
imbalance ratio 100 keeps 10,847. Of those left out, up to 200 of each class score a
run, each class counting the same, compensated to the uniform prior; the most frequent
class has none. Nobody with a long tail has such images: they are here to understand a
setting, without the test set.
"""

import dataclasses
import sys
from pathlib import Path

import torch
from result_tables import ROOT, read_rows, write_rows

from tailshift import Predictions, Run, evaluate, load_run
from tailshift.data import Split
from tailshift.data.cifar import CIFARLT
from tailshift.evaluation.results import result_rows
from tailshift.paper.tune import validation_score

RESULTS = ROOT / "results" / "unused_images.csv"
PER_CLASS = 200
ABOUT = ("recipe", "method", "mode", "settings", "seed", "epochs")
MADE = ("commit", "hardware", "torch", "precision", "processor_minutes", "command")


def unused(kind: CIFARLT, root: Path) -> Split:
    """Return up to PER_CLASS images of each class that are not trained on."""
    taken = set(kind.load(root=root).train.keys())
    whole = dataclasses.replace(kind, imbalance_ratio=1.0).load(root=root).train
    chosen = []
    for label in whole.labels.unique():
        rows = (whole.labels == label).nonzero().flatten().tolist()
        keys = whole.subset(torch.tensor(rows)).keys()
        free = [row for row, key in zip(rows, keys, strict=True) if key not in taken]
        chosen += free[:PER_CLASS]
    return whole.subset(torch.tensor(chosen))


@torch.inference_mode()
def score(run: Run, split: Split) -> float:
    """Return the class-balanced accuracy, compensated to the uniform prior."""
    loader = split.loader(batch_size=500, training=False)
    f = torch.cat([run.model(batch.images) for batch in loader.epoch(0)])
    f = run.config.method.log_posteriors(f)  # (N, C)
    return validation_score(Predictions(f, split.labels, logit_prior=run.logit_prior))


def row(run: Run, root: Path) -> dict[str, str]:
    """Return what the run is, and its scores on unused and on test images."""
    assert isinstance(run.config.data, CIFARLT)
    split = unused(run.config.data, root)
    records = evaluate(run.predictions("test"), ["uniform"])
    [answered] = [record for record in records if record.compensated]
    [about] = result_rows(run, ["uniform"], records=records)
    return {
        **{column: about[column] for column in ABOUT},
        "num_unused": str(len(split)),
        "unused": f"{100 * score(run, split):.2f}",
        "test": about["compensated"],
        "ece": f"{answered.ece:.4f}",
        "nll": f"{answered.nll:.4f}",
        **{column: about[column] for column in MADE},
    }


def main() -> None:
    """Add a row for each run; a row of the same run is replaced."""
    root, *directories = map(Path, sys.argv[1:])
    rows = read_rows(RESULTS)
    for directory in directories:
        new = row(load_run(directory), root)
        rows = [old for old in rows if old["command"] != new["command"]] + [new]
        sys.stdout.write(f"{new['command']}: {new['unused']}, test {new['test']}\n")
    write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
