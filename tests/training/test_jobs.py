"""Several runs at once, in real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tailshift as ts
from tailshift import registry
from tailshift.demo import run_demo
from tailshift.paper.reproduce import train_jobs
from tailshift.paper.tune import tune
from tailshift.runs.directory import hold_lock
from tailshift.training import jobs
from tailshift.training.jobs import Failure, Job, num_at_once

Command = Callable[..., Any]
TinyConfig = Callable[..., ts.RunConfig]
NO_VALIDATION = """
from dataclasses import replace
from tailshift.data import DATASETS, DigitsLT

@DATASETS.register("digits_without_val")
class WithoutVal(DigitsLT):
    '''Digits, none of them for validation.'''

    def load(self, *, root, seed):
        return replace(super().load(root=root, seed=seed), val=None)
"""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Give a run in this process as many threads as one in a process of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_train__one_failure_stops_no_other_run(
    tailshift: Command, tiny_config: TinyConfig
) -> None:
    """The second folder is in use; the others are those of a single process."""
    command = ("train", "digits_lt", "--method", "softmax", "--set", "train.epochs=2")
    Path("runs/softmax-seed1").mkdir(parents=True)
    with hold_lock(Path("runs/softmax-seed1")):
        result = tailshift(
            *command, "--seeds", "0,1,2", "--jobs", "2", "--output", "runs"
        )
    refusal = (
        f"`output` runs/softmax-seed1 must be free, but another process "
        f"({os.getpid()} on {socket.gethostname()}) trains in it. Wait for its end, or "
        "name another folder (--output)."
    )
    assert result.code == 2
    *lines, last = result.err.splitlines()
    assert last == f"error: runs/softmax-seed1: {refusal}"
    assert any(line.startswith(f"softmax-seed1: failed: {refusal} (") for line in lines)
    assert sum("softmax-seed2: epoch" in line for line in lines) == 2
    assert result.out.splitlines()[1::2] == ["runs/softmax-seed0", "runs/softmax-seed2"]
    for seed in (0, 2):
        run = Path(f"runs/softmax-seed{seed}")
        config = tiny_config("method.name=softmax", f"seed={seed}")
        alone = ts.train(config, output=f"alone{seed}").directory
        for name in ("weights.safetensors", "predictions/test.safetensors"):
            tensors, expected = load_file(run / name), load_file(alone / name)
            assert all(torch.equal(tensors[key], expected[key]) for key in expected)
        assert (run / "config.json").read_bytes() == (
            alone / "config.json"
        ).read_bytes()
        log = (run / "train.log").read_text(encoding="utf-8").splitlines()
        assert log[0].startswith("data: digits_lt")
        assert log[-1].startswith("epoch 2/2: ")


class _Terminal:
    """The command line in a pseudo-terminal, as a user has it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        import fcntl
        import pty
        import termios

        self._master, slave = pty.openpty()
        self._said: list[bytes] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailshift", *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._master, 4096)
            except OSError:  # the last process has closed it
                return
            if not part:
                return
            self._said.append(part)

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def end(self) -> tuple[int, str]:
        code = self.process.wait(300)
        self._reader.join(60)
        os.close(self._master)
        return code, b"".join(self._said).decode()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_free(folder: Path) -> bool:
    try:
        with hold_lock(folder):
            return True
    except BlockingIOError:
        return False


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_train__stops_all_and_resumes_all(tmp_path: Path) -> None:
    """After Ctrl-C, after SIGTERM, and after this process is killed."""
    command = ("train", "digits_lt", "--method", "softmax", "--seeds", "0,1")
    command += ("--jobs", "2", "--output", "runs", "--set", "train.epochs=5000")
    folders = [tmp_path / "runs" / f"softmax-seed{seed}" for seed in (0, 1)]

    def epochs() -> list[int]:
        logs = [folder / "metrics.jsonl" for folder in folders]
        return [log.read_bytes().count(b"\n") if log.exists() else 0 for log in logs]

    def start(*options: str) -> _Terminal:
        terminal, before = _Terminal(tmp_path, *command, *options), epochs()
        _wait_for(lambda: all(map(int.__gt__, epochs(), before)))
        return terminal

    def states() -> list[str]:
        return [ts.load_run(folder).facts.state for folder in folders]

    terminal = start()
    terminal.press_ctrl_c()
    code, said = terminal.end()
    assert code == 130
    assert said.rstrip().endswith(
        "interrupted: the same command with --resume resumes where this one stopped."
    )
    assert "softmax-seed1" in said  # its bar
    assert states() == ["interrupted", "interrupted"]
    for folder in folders:  # Ctrl-C came once: there was time for an evaluation
        assert (folder / "predictions" / "test.safetensors").is_file()

    terminal = start("--resume")
    os.kill(terminal.process.pid, signal.SIGTERM)
    code, said = terminal.end()
    assert code == 75
    assert "the same command with --resume" in said
    assert states() == ["interrupted", "interrupted"]

    terminal = start("--resume")
    terminal.process.kill()
    assert terminal.end()[0] == -signal.SIGKILL
    _wait_for(lambda: all(map(_is_free, folders)))
    assert states() == ["interrupted", "interrupted"]


def test_tune__finds_the_same_with_several_at_once(
    tiny_config: TinyConfig, tmp_path: Path
) -> None:
    """With a plugin's data, of which validation images are held out."""
    plugin = tmp_path / "without_val.py"
    plugin.write_text(NO_VALIDATION, encoding="utf-8")
    module = ts.load_plugin(plugin)
    try:
        config = tiny_config(
            "data.name=digits_without_val", "method.name=lade", "optim.lr=0.01"
        )
        grid: dict[str, Any] = {"alphas": [0.1, 1e30], "lams": [0.5]}
        alone = tune(config, output=tmp_path / "alone", **grid)
        together = tune(config, output=tmp_path / "together", jobs=2, **grid)
    finally:
        registry._forget(module.__name__)
    assert str(together.trials) == str(alone.trials)
    assert "nan" in str(alone.trials)  # one diverges, in its own process too


def _train_here(planned: Sequence[Job], at_once: int, **options: Any) -> list[Failure]:
    assert at_once == 2
    for job in reversed(planned):  # the order in which they end is any
        ts.train(job.config, output=job.directory)
    return []


def test_demo__several_at_once(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailshift.demo.run_jobs", _train_here)
    monkeypatch.setattr("tailshift.demo.load_recipe", lambda _, own: tiny_config(*own))
    settings: dict[str, Any] = {"methods": ("softmax",), "seeds": (0, 1)}
    alone, _ = run_demo(tmp_path / "alone", **settings)
    together, page = run_demo(tmp_path / "together", jobs=2, **settings)
    assert together == alone
    assert page.is_file()


def test_reproduce__tells_a_missing_data_set_once(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = [Job(tiny_config(), tmp_path / name) for name in ("one", "two", "three")]
    failures = [
        Failure(planned[0], "There is no data.", None),
        Failure(planned[1], "There is no data.", None),
        Failure(planned[2], "The loss is nan.", tmp_path / "train.log"),
    ]
    monkeypatch.setattr(
        "tailshift.paper.reproduce.run_jobs", lambda *args, **options: failures
    )
    assert train_jobs(planned, at_once=2) == [
        f"digits_lt: {tmp_path}/one: There is no data.",
        f"digits_lt: {tmp_path}/three: The loss is nan. Its log is "
        f"{tmp_path}/train.log.",
    ]


def test_num_at_once__refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="jobs") as error:
        num_at_once(-1, 3)
    assert str(error.value) == (
        "`jobs` must be >= 0 (0: one per GPU or core), but is -1."
    )
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(ValueError, match="srun") as error:
        num_at_once(2, 3)
    assert str(error.value) == (
        "`jobs` must be 1 under torchrun or srun, but is 2: their processes train one "
        "run together. Start the command without them."
    )
    assert num_at_once(2, 1) == 1


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [(None, 1, ["0", "1", "2", "0"]), ("4,5,7", 2, ["4,5", "7,4", "5,7", "4,5"])],
)
def test_environment__shares_gpus_and_threads(
    visible: str | None,
    devices: int,
    expected: list[str],
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = tiny_config(f"train.devices={devices}")
    given = [jobs._environment(config, slot, 4) for slot in range(4)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in given] == expected
    assert {one["OMP_NUM_THREADS"] for one in given} == {"2"}
    assert num_at_once(0, 8) == 3
