"""`tailshift train` and `features` on image files end, and leave nobody behind.

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
import torch
from PIL import Image

from tailshift.models import TimmBackbone

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

    def read_until(
        self, is_reached: Callable[[], bool], within: float = SECONDS
    ) -> None:
        """Take what is printed until something is the case."""
        deadline = time.monotonic() + within
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
        return _children(self.pid)

    def descendants(self) -> list[int]:
        """Return those, and the ones that they have started."""
        found = self.children()
        for pid in found:  # it grows meanwhile
            found += _children(pid)
        return found

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


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # it has ended
        return []
    return [int(child) for child in text.split()]


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
def launch(tmp_path: Path) -> Iterator[Start]:
    """Start the command line in a process and on a terminal of its own."""
    started: list[Process] = []

    def begin(*arguments: object, before: str = "") -> Process:
        command = [sys.executable, "-c", before + MAIN, *map(str, arguments)]
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


@pytest.fixture
def start(images: Path, launch: Start) -> Start:
    """Start training on these images."""

    def begin(*settings: str, before: str = "") -> Process:
        chosen = ("model.name=digits_net", "data.flip=false", "train.num_workers=2")
        words = ["train", "--data", f"folder:{images}", "--output", "run"]
        for setting in (*chosen, *settings):
            words += ["--set", setting]
        return launch(*words, before=before)

    return begin


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


@pytest.fixture
def extract(images: Path, launch: Start, tmp_path: Path) -> Start:
    """Start to compute features of a thousand views, by so many processes."""
    torch.save(TimmBackbone("test_efficientnet").model.state_dict(), tmp_path / "w.pth")

    def begin(jobs: int) -> Process:
        network = ("--model", "timm:test_efficientnet", "--weights", "w.pth")
        options = ("--image-size", "32", "--views", "1000", "--jobs", jobs)
        return launch(
            "features", f"folder:{images}", *network, *options, "--output", "bank"
        )

    return begin


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("pauses", [(), (0.0, 0.3)])
def test_features__keys_pressed_once_and_in_a_row(
    extract: Start, jobs: int, pauses: tuple[float, ...]
) -> None:
    process = extract(jobs)
    begun = process.folder / "bank" / f"progress-train-0-0-of-{jobs}"
    process.read_until(begun.is_file, within=3 * SECONDS)  # they import PyTorch, too
    everyone = process.descendants()
    process.press(CTRL_C)
    for pause in pauses:
        time.sleep(pause)
        with contextlib.suppress(OSError):  # it has ended
            process.press(CTRL_C)
    assert process.end(within=30) == 130
    assert "Traceback" not in process.text
    assert _are_gone(everyone)


def test_features__a_key_pressed_while_processes_start(extract: Start) -> None:
    process = extract(2)
    process.read_until(lambda: len(process.children()) == 3)  # one counts semaphores
    everyone = process.descendants()
    process.press(CTRL_C)
    assert process.end(within=30) == 130
    assert "Traceback" not in process.text
    assert _are_gone(everyone)
