"""A run that is killed again and again ends as if it had not been.

The runs are children of one process that has imported everything and started no
thread (`_main` below, in an interpreter of its own): a child is forked in milliseconds,
trains, and is killed with SIGKILL, which nothing can catch.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SETTINGS = (
    "method.name=lade",
    "method.alpha=0.1",
    "train.epochs=12",
    "train.checkpoint_steps=2",
)
NUM_KILLS = 20
EVENTS = ("fsync", "before rename", "after rename")


def _without_times(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    times = ("seconds", "processor_seconds", "images_per_second")
    return [{k: v for k, v in json.loads(s).items() if k not in times} for s in lines]


def _assert_same(folder: Path, reference: Path) -> None:
    def names(root: Path) -> set[str]:
        found = {str(path.relative_to(root)) for path in root.rglob("*")}
        return found - {"checkpoint.previous.safetensors"}

    assert names(folder) == names(reference)  # no lock, nothing half written
    for name in ("weights", "predictions/val", "predictions/test"):
        file = f"{name}.safetensors"
        tensors, expected = load_file(folder / file), load_file(reference / file)
        assert tensors.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.equal(tensors[key], value), key
    assert _without_times(folder) == _without_times(reference)
    assert (folder / "run.json").read_text() == (reference / "run.json").read_text()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_train__killed_twenty_times_is_the_same(tmp_path: Path) -> None:
    """Ten times within a write, ten times whenever it comes, also in the evaluation."""
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] == NUM_KILLS
    assert told["half_written"] >= 3  # a temporary file was there when it was killed
    assert {place for place, _ in told["in_writes"]} == set(EVENTS)
    assert any("checkpoint" in name for _, name in told["in_writes"])
    finished = [tmp_path / name for name in told["finished"]]
    assert finished
    for folder in finished:
        _assert_same(folder, tmp_path / "reference")


def _main(root: Path) -> None:
    """Train a reference, then kill and resume runs; print what happened as JSON."""
    import lightning_fabric  # noqa: F401 (what a child would import)

    import tailshift as ts
    from tailshift.training.progress import TrainingProgress

    torch.set_num_threads(1)
    config = ts.load_recipe("digits_lt", SETTINGS)
    data = config.data.load(root=None, seed=0)

    def child(folder: Path, told: int, fatal: tuple[str, int] | None) -> None:
        """Train in a forked process; ``fatal`` is where it kills itself, if at all."""

        def step(*args: Any) -> None:
            os.write(told, b"s")

        TrainingProgress.step = step  # type: ignore[method-assign]
        if fatal is not None:
            _die_in_a_write(root, *fatal)
        ts.train(config, output=folder, resume=True, data=data)

    def fork(folder: Path, fatal: tuple[str, int] | None = None) -> tuple[int, int]:
        steps, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                sys.stdout = sys.stderr  # the progress bar's
                child(folder, told, fatal)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(told)
        return pid, steps

    pid, steps = fork(root / "reference")
    assert os.waitpid(pid, 0)[1] == 0
    chance = random.Random(0)
    kills = half_written = 0
    finished: list[str] = []
    folder = root / "run0"
    turns = _turns(chance)
    while kills < NUM_KILLS or folder.name not in finished:
        fatal, steps_before, delay = next(turns)
        is_last = kills == NUM_KILLS
        pid, steps = fork(folder, None if is_last else fatal)
        if fatal is None and not is_last:
            if steps_before is not None:
                os.read(steps, 1)  # it has begun to train
                for _ in range(steps_before):
                    os.read(steps, 1)
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        os.close(steps)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills += 1
            half_written += any(folder.rglob(".*tmp*"))
            continue
        assert status == 0, f"a run failed with status {status}"
        finished.append(folder.name)
        if kills < NUM_KILLS:
            folder = root / f"run{len(finished)}"
    in_writes = [
        json.loads(line) for line in (root / "in_writes").read_text().splitlines()
    ]
    facts = {"kills": kills, "half_written": half_written, "finished": finished}
    sys.stdout.write(json.dumps({**facts, "in_writes": in_writes}) + "\n")


def _turns(
    chance: random.Random,
) -> Iterator[tuple[tuple[str, int] | None, int | None, float]]:
    """Yield where a child kills itself, or the steps and seconds until it is killed."""
    while True:
        for event in EVENTS:
            yield (event, chance.randrange(1, 9)), None, 0.0
            yield None, chance.randrange(0, 6), chance.uniform(0, 0.03)
        yield None, None, chance.uniform(0, 0.4)  # perhaps before the first step


def _die_in_a_write(root: Path, event: str, number: int) -> None:
    """Have this process kill itself at the n-th such event of `atomic_write`."""
    left = [number]

    def die(name: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            with (root / "in_writes").open("a") as file:
                file.write(json.dumps([event, name]) + "\n")
            os.kill(os.getpid(), signal.SIGKILL)

    if event == "fsync":
        fsync = os.fsync

        def dying_fsync(descriptor: int) -> None:
            die("a file or folder")
            fsync(descriptor)

        os.fsync = dying_fsync  # type: ignore[assignment]
        return
    replace = Path.replace

    def dying_replace(path: Path, target: Path) -> Path:
        if event == "before rename":
            die(str(target))
        replaced = replace(path, target)
        if event == "after rename":
            die(str(target))
        return replaced

    Path.replace = dying_replace  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
