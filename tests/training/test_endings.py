"""`tailshift train` on image files ends, and leaves nobody behind.

A real process on a terminal of its own, as a user has it: Ctrl-C reaches the process
and its workers.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pty = pytest.importorskip("pty")  # not on Windows
pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]

SECONDS = 60.0  # with torch's imports, on a busy machine
CTRL_C = b"\x03"
MAIN = "import tailshift.cli; tailshift.cli.main()"
NO_COLLECTION = "import gc; gc.disable()\n"  # nothing is closed by chance
SLOW_CHECKPOINT = """
import time
from tailshift.training import recorder
save = recorder.save_checkpoint

def slow(*args, **settings):
    if not args[0].is_file():  # the first epoch's
        return save(*args, **settings)
    print("writing", flush=True)
    for _ in range(100):
        time.sleep(0.05)
    return save(*args, **settings)

recorder.save_checkpoint = slow
"""


@dataclass
class Process:
    """A process on a pseudo-terminal."""

    pid: int
    terminal: int
    folder: Path
    text: str = ""
    is_running: bool = True

    def read_until(self, is_reached: Callable[[], bool]) -> None:
        """Take what is printed until something is the case."""
        deadline = time.monotonic() + SECONDS
        while not is_reached():
            assert time.monotonic() < deadline, self.text[-2000:]
            assert self._read(), self.text[-2000:]

    def workers(self) -> list[int]:
        """Wait until an epoch is done; return the processes that decode."""
        metrics = self.folder / "run" / "metrics.jsonl"
        self.read_until(lambda: metrics.is_file() and len(self.children()) == 2)
        return self.children()

    def press(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def children(self) -> list[int]:
        """Return the processes that this one has started."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def end(self, within: float = SECONDS) -> int:
        """Return the exit code; fail if there is none in time."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.is_running = False  # its number may be another's from now on
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"not ended after {within:g} s: {self.text[-2000:]}")

    def _read(self) -> bool:
        """Take what was printed; return whether there may be more."""
        if select.select([self.terminal], [], [], 0.1)[0]:
            try:
                part = os.read(self.terminal, 65536)
            except OSError:  # the terminal is closed
                return False
            self.text += part.decode(errors="replace")
            return bool(part)
        return True


Start = Callable[..., Process]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder of 400 images in 4 classes."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for i in range(400):
        path = root / f"class {i % 4}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return root


@pytest.fixture
def start(images: Path, tmp_path: Path) -> Iterator[Start]:
    """Start training on these images in a process of its own."""
    started: list[Process] = []

    def begin(*settings: str, before: str = "") -> Process:
        chosen = ("model.name=digits_net", "data.flip=false", "train.num_workers=2")
        command = [sys.executable, "-c", before + MAIN, "train"]
        command += ["--data", f"folder:{images}", "--output", "run"]
        for setting in (*chosen, *settings):
            command += ["--set", setting]
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(tmp_path)
            os.execv(command[0], command)
        started.append(Process(pid, terminal, tmp_path))
        return started[-1]

    yield begin
    for process in started:
        if process.is_running:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
        os.close(process.terminal)


def _are_gone(pids: list[int], within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_train__ends_when_its_work_is_done(start: Start) -> None:
    process = start("train.epochs=2", before=NO_COLLECTION)
    assert process.end() == 0
    assert process.text.splitlines()[-1] == "run"


def test_train__one_interruption_saves_and_ends(start: Start) -> None:
    process = start("train.epochs=10000", before=NO_COLLECTION)
    workers = process.workers()
    process.press(CTRL_C)
    assert process.end(within=30) == 130
    assert "interrupted after" in process.text
    assert "Traceback" not in process.text
    assert _are_gone(workers)


def test_train__a_second_interruption_ends_at_once(start: Start) -> None:
    process = start("train.epochs=10000", before=SLOW_CHECKPOINT)
    workers = process.workers()
    process.press(CTRL_C)
    process.read_until(lambda: "writing" in process.text)
    process.press(CTRL_C)
    assert process.end(within=15) == 130
    assert "Traceback" not in process.text
    assert _are_gone(workers)


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_train__keys_pressed_in_a_row(start: Start, pause: float) -> None:
    process = start("train.epochs=10000")
    workers = process.workers()
    for _ in range(5):
        with contextlib.suppress(OSError):  # it has ended
            process.press(CTRL_C)
        time.sleep(pause)
    assert process.end(within=15) == 130
    assert "Traceback" not in process.text
    assert _are_gone(workers)


def test_train__workers_end_with_a_killed_parent(start: Start) -> None:
    process = start("train.epochs=10000")
    workers = process.workers()
    os.kill(process.pid, signal.SIGKILL)
    assert process.end() == -signal.SIGKILL
    assert _are_gone(workers)


def test_train__a_scheduler_tells_every_process(start: Start) -> None:
    process = start("train.epochs=10000")
    workers = process.workers()
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGTERM)
    assert process.end(within=30) == 75
    assert "pre-empted and saved" in process.text
    assert _are_gone(workers)
