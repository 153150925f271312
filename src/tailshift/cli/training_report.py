"""Print the results of `tailshift train`."""

import shlex
from typing import TYPE_CHECKING

from tailshift.cli.app import announce, console

if TYPE_CHECKING:
    from tailshift.runs.run import Run


def report_training(run: "Run") -> None:
    """Print the accuracy of a run and its directory; exit with 130 if unfinished."""
    from tailshift.data.features import BankedFeatures
    from tailshift.data.own_images import OwnImages
    from tailshift.runs.files import resume_command
    from tailshift.training.distributed import is_first_process

    is_told = is_first_process()
    if is_told and not run.is_finished:
        console.print(
            f"interrupted after {run.facts.epochs_done} epochs; resume with "
            f"{resume_command(run.directory)}",
            soft_wrap=True,
            markup=False,
        )
    if not run.is_finished:
        raise SystemExit(130)
    if not is_told:
        return
    unit = "samples" if run.config.model.name == "features" else "images"
    _report_uniform(run, unit)
    if isinstance(run.config.data, OwnImages | BankedFeatures):
        _report_own(run, unit)
    print(run.directory)


def _report_uniform(run: "Run", unit: str) -> None:
    """Print the accuracy on the uniform test set, as `tailshift report` does."""
    from tailshift.compensation import post_compensate
    from tailshift.evaluation.sampling import default_sampling, draw_test_set
    from tailshift.metrics import accuracy

    test = run.predictions("test")
    drawn = draw_test_set(
        "uniform",
        test.labels,
        run.source_counts,
        sampling=default_sampling(test.labels),
    )
    f = post_compensate(
        test.logits, logit_prior=run.logit_prior, target_prior=drawn.target_prior
    )
    [weights] = drawn.weights  # (N,)
    raw, compensated = (
        100 * accuracy(logits, test.labels, sample_weights=weights)
        for logits in (test.logits, f)
    )
    n, effective = len(weights), round(float(weights.sum() ** 2 / (weights**2).sum()))
    size = f"{n:,} {unit}"
    if effective != n:
        size = f"{n:,} weighted {unit}, effectively {effective:,}"
    console.print(
        f"{run.config.method.title}: {raw:.1f} % as trained, {compensated:.1f} % "
        f"re-targeted to the uniform test set ({size})",
        soft_wrap=True,
    )


def _report_own(run: "Run", unit: str) -> None:
    """Print accuracy by class group for two class distributions, and the next steps."""
    from tailshift.compensation import post_compensate
    from tailshift.metrics import accuracy, group_accuracy
    from tailshift.metrics.accuracy import class_groups
    from tailshift.priors import counts_from_labels, uniform

    test, counts = run.predictions("test"), run.group_counts
    tested = counts_from_labels(test.labels, len(counts))
    sizes = {k: int(tested[c].sum()) for k, c in class_groups(counts).items()}
    for mix, prior in (
        ("the training class distribution", run.source_prior),
        ("equally frequent classes", uniform(len(run.class_names))),
    ):
        f = post_compensate(
            test.logits, logit_prior=run.logit_prior, target_prior=prior
        )
        groups = group_accuracy(f, test.labels, counts).items()
        shown = [f"{k} {100 * v:.1f}, n = {sizes[k]:,}" for k, v in groups if sizes[k]]
        announce(
            f"{len(test.labels):,} test {unit}, re-targeted to {mix}: "
            f"{100 * accuracy(f, test.labels):.1f} % ({'; '.join(shown)})"
        )
    place = shlex.quote(str(run.directory))
    announce(f"next: tailshift report {place} -o report")
    announce(f"next: tailshift predict {place} PHOTOS --adapt -o answers.csv")
