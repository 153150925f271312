import importlib
from pathlib import Path

import pytest

from tailshift.evaluation.results import read_results

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
RESULTS = ROOT / "results"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts import each other, as they do when they are run."""
    monkeypatch.syspath_prepend(EXPERIMENTS)


def test_queue__every_run_is_valid_and_has_a_folder_of_its_own(tmp_path: Path) -> None:
    queue = importlib.import_module("run_queue")
    jobs = list(queue.queued_jobs(EXPERIMENTS / "queue.toml", tmp_path))
    assert len({job.directory for job in jobs}) == len(jobs) > 0
    assert not any(queue.is_finished(job) for job in jobs)


def test_rescore__kept_rows_by_expectation_are_those_of_the_kept_logits() -> None:
    kept = [
        row
        for row in read_results(RESULTS / "cifar100_lt.csv")
        if row["recipe"] == "cifar100_lt_ir50_softmax"
    ]
    first = [row for row in kept if row["sampling"] == "first"]
    rescore = importlib.import_module("rescore")
    found = list(rescore.expected_rows(first, RESULTS / "logits"))
    assert found == [row for row in kept if row["sampling"] == "expected"]
    assert len(found) == len(first) == 11
    assert list(rescore.expected_rows(kept, RESULTS / "logits")) == []
    assert list(rescore.expected_rows(first, EXPERIMENTS)) == []
