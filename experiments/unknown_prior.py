"""Measure heads on ImageNet features under an unknown target prior.

Run ``python experiments/unknown_prior.py DATA_ROOT``. It writes
``results/unknown_prior.csv``, and ``python docs/tables.py`` fills the table of
``docs/results.md`` from it. It takes some minutes on one core, more if the features
are not in the cache.

A tenth of each class's training images is held out, and a head is fitted to the rest.
The calibrator and the MAP estimator see the held-out images with labels and the target
without. Targets are the paper's test sets; a seed holds out other images.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from result_tables import ROOT, write_rows

from tailshift import (
    Run,
    adapt,
    load_recipe,
    post_compensate,
    priors,
    targets,
    train,
)
from tailshift.data import LongTailedData
from tailshift.evaluation.sampling import shifted_subset
from tailshift.training.resolve import banked, with_validation

RESULTS = ROOT / "results" / "unknown_prior.csv"
RECIPE = "cifar100_lt_ir100_lite0_balanced_softmax"
TARGETS = ("forward:50", "forward:10", "uniform", "backward:10", "backward:50")
SEEDS = (0, 1, 2)


def measure(data: LongTailedData, seed: int) -> Iterator[dict[str, str | int]]:
    """Yield a row for each target."""
    with tempfile.TemporaryDirectory() as folder:
        held_out = with_validation(data, seed=seed)
        run = train(load_recipe(RECIPE), output=f"{folder}/run", data=held_out)
        for target in TARGETS:
            yield {"recipe": RECIPE, "seed": seed, "target": target} | score(
                run, target
            )


def score(run: Run, target: str) -> dict[str, str | int]:
    """Return the accuracy on a target's test set by the prior that is answered for."""
    known, test = run.predictions("val"), run.predictions("test")
    counts = targets.target_counts(target, test.source_counts, 100)
    chosen = shifted_subset(test.labels, counts)
    f, y = test.logits[chosen], test.labels[chosen]
    found = adapt(known, f)
    answered = {
        "none": run.source_prior,
        "estimated": found.estimated_prior,
        "adapt": found.target_prior,
        "known": priors.from_counts(counts),
    }
    row: dict[str, str | int] = {"held_out": len(known.labels), "num_samples": len(y)}
    for column, prior in answered.items():
        logits = post_compensate(f, logit_prior=run.logit_prior, target_prior=prior)
        row[column] = f"{100 * (logits.argmax(1) == y).double().mean():.2f}"
    return row


def main() -> None:
    """Write one row for each seed and target."""
    config = load_recipe(RECIPE)
    data = config.data.load(root=Path(sys.argv[1]), seed=0)
    data = banked(data, config.model, is_verbose=True)
    rows = []
    for seed in SEEDS:
        for row in measure(data, seed):
            rows.append(row)
            sys.stdout.write(f"{row}\n")
    write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
