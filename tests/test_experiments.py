import importlib.util
from pathlib import Path

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def test_queue__every_run_is_valid_and_has_a_folder_of_its_own(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "run_queue", EXPERIMENTS / "run_queue.py"
    )
    assert spec is not None
    assert spec.loader is not None
    queue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(queue)
    jobs = list(queue.queued_jobs(EXPERIMENTS / "queue.toml", tmp_path))
    assert len({job.directory for job in jobs}) == len(jobs) > 0
    assert not any(queue.is_finished(job) for job in jobs)
