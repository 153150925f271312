"""The demonstration: the paper's claim on real images in about a minute."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tailshift.evaluation import Record, Summary, evaluate, summarise
from tailshift.priors import PAPER_TARGETS
from tailshift.recipes import load_recipe
from tailshift.report import ReportRun, write_csv, write_report
from tailshift.training import Run, train

METHODS = ("softmax", "balanced_softmax", "lade")
SEEDS = (0, 1, 2)


def run_demo(
    output: Path,
    *,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = SEEDS,
    announce: Callable[[str], None] = lambda text: None,
) -> tuple[list[Summary], Path]:
    """Train each method with each seed; write ``table.csv`` and ``report.html``.

    Args:
        output: A folder that does not exist yet.
        methods: Registered names.
        seeds: One run of each method for each.
        announce: Told what is about to be trained.

    Returns:
        The table's rows, and the path of the report.
    """
    if output.exists():
        raise FileExistsError(
            f"`output` {output} exists. Name a new folder (--output)."
        )
    runs = []
    for method in methods:
        announce(f"training {method} with seeds {', '.join(map(str, seeds))}")
        for seed in seeds:
            config = load_recipe("digits_lt", [f"method.name={method}", f"seed={seed}"])
            run = train(config, output=output / "runs" / f"{method}-seed{seed}")
            if not run.is_finished:
                raise KeyboardInterrupt
            runs.append(report_run(run))
    summaries = summarise_runs(runs)
    write_csv(output / "table.csv", summaries)
    report = output / "report.html"
    write_report(report, runs, title="Handwritten digits, imbalance ratio 50")
    return summaries, report


def report_run(run: Run, split: str = "test") -> ReportRun:
    """Return a finished run as reports and tables take it."""
    return ReportRun(
        method=run.config.method.title,
        seed=run.config.seed,
        predictions=run.predictions(split),
        name=str(run.directory),
    )


def summarise_runs(
    runs: Sequence[ReportRun], targets: Sequence[str] = PAPER_TARGETS
) -> list[Summary]:
    """Return mean and spread over the seeds of each method, target by target."""
    records: dict[str, list[list[Record]]] = {}
    for run in runs:
        records.setdefault(run.method, []).append(evaluate(run.predictions, targets))
    return summarise(records)


def next_folder(parent: Path) -> Path:
    """Return ``parent/demo-N`` with the first N that is free."""
    number = 1
    while (parent / f"demo-{number}").exists():
        number += 1
    return parent / f"demo-{number}"
