"""Train the runs that queue.toml lists and add their rows to a results file.

Run the same command again to resume. Runs that are finished, or whose rows are in the
results file, are not trained again.
"""

import argparse
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rescore import config_of

from tailshift import load_recipe, load_run
from tailshift.evaluation.results import (
    add_results,
    keep_logits,
    read_results,
    result_rows,
)
from tailshift.paper.reproduce import make_job
from tailshift.runs.files import CONFIG
from tailshift.runs.index import is_run_of
from tailshift.training.jobs import Failure, Job, num_at_once, run_jobs

HERE = Path(__file__).parent
ADVICE = "Run the same command again to resume."


def main() -> None:
    """Collect the finished runs, then train the missing ones in order."""
    options = parse_options()
    jobs = list(queued_jobs(options.queue, options.runs))

    def collect(job: Job, failure: Failure | None) -> None:
        if failure is None:
            run = load_run(job.directory)
            add_results(options.results, result_rows(run))
            if options.logits is not None:
                keep_logits(run, options.logits)

    rows = read_results(options.results)
    known = {(row["command"], int(row["seed"])) for row in rows}
    trained = [(config_of(command), seed) for command, seed in sorted(known)]
    missing = []
    for job in jobs:
        if is_finished(job):
            collect(job, None)
        elif not any(
            seed == job.config.seed and is_run_of(config, job.config)
            for config, seed in trained
        ):
            missing.append(job)
    print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are finished.", flush=True)
    if options.collect or not missing:
        return
    failures = run_jobs(
        missing,
        num_at_once(options.jobs, len(missing)),
        data_root=options.data_root,
        resume=True,
        advice=ADVICE,
        on_end=collect,
    )
    for failure in failures:
        print(f"error: {failure}", flush=True)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue", type=Path, default=HERE / "queue.toml")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets")
    parser.add_argument(
        "--results", type=Path, default=HERE.parent / "results" / "cifar100_lt.csv"
    )
    parser.add_argument("--logits", type=Path, help="folder to keep test logits in")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument(
        "--collect", action="store_true", help="add finished runs, train nothing"
    )
    return parser.parse_args()


def queued_jobs(queue: Path, runs: Path) -> Iterator[Job]:
    """Yield the runs of a queue file, one per recipe and seed."""
    entries: list[dict[str, Any]] = tomllib.loads(queue.read_text("utf-8"))["runs"]
    for entry in entries:
        settings = entry.get("set", [])
        variant = "".join(f"-{setting}" for setting in settings)
        for seed in entry["seeds"]:
            for recipe in entry["recipes"]:
                yield make_job(load_recipe(recipe, settings), seed, runs, variant)


def is_finished(job: Job) -> bool:
    """Return whether a run was trained to its end."""
    return (job.directory / CONFIG).is_file() and load_run(job.directory).is_finished


if __name__ == "__main__":
    main()
