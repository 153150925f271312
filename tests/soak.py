"""Kill, starve and damage commands at random, and look whether anything is lost.

    python tests/soak.py --kills 1000 --log build/kills.csv

Each round takes a command (training, feature extraction, tuning, `reproduce --jobs 2`,
the server), knocks it some ten times at random moments, and lets it end. A knock is
SIGKILL, SIGTERM, SIGINT, a disk that is full, or SIGKILL and then a bit flipped in, or
a part cut off, the file that was written last. After each, the same command resumes.
A command may refuse a damaged file by name; the file is then put back, as from a
backup. At the end all that was written must equal, to the bit, what a round without
knocks wrote, and what lay beside it must be as it was.

One row a knock goes to the log. Whatever is drawn in a round follows from its seed:
``--seed 17`` repeats round 17 alone, though the moments are those of a clock. The same
command adds rounds until there are as many knocks as asked for. Commands are forked
from this process, which has imported everything and started no thread; what they start
themselves is started as ever. A full disk is a small tmpfs and needs root.
"""

import argparse
import base64
import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import pickle
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightning_fabric  # noqa: F401 (what a command would import)
import numpy as np
import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
import timm  # noqa: F401
import torch
import uvicorn  # noqa: F401
from PIL import Image
from safetensors.numpy import load_file

import tailshift as ts
from tailshift.cli import main
from tailshift.data import DATASETS
from tailshift.models import TimmBackbone
from tailshift.runs.directory import hold_lock
from tailshift.serving import server  # noqa: F401
from tailshift.serving.export import export_onnx
from tailshift.training import extraction_work

KNOCKS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "full disk", "cut", "flipped")
IN_A_ROUND = 10
DISK = 96 * 2**20  # bytes of the small disk
LONGEST = 240.0  # seconds that a command may take, or it hangs
COLUMNS = ("seed", "subject", "knock", "seconds", "file", "ended", "outcome", "commit")
TIMES = re.compile(r"seconds|per_second|time|date|started|ended|hours|minutes")
BYSTANDERS = {"notes.txt": b"mine\n", "figures/old.png": bytes(range(256))}
PLAIN_NET = Path(__file__).with_name("clusters") / "plain_net.py"


class Lost(AssertionError):  # noqa: N818 (it is no fault of this program)
    """Something was lost, or a command ended as it must not."""


class Subject(NamedTuple):
    """A command, and how often and how soon it is knocked."""

    name: str
    arguments: Callable[[Path, Path], list[str]]
    """What follows ``tailshift``, of the inputs and of a folder for the outputs."""
    within: float
    """Share of the time it takes within which a knock comes; the server: seconds."""
    share: int
    """Rounds of twenty."""


def _training(inputs: Path, output: Path) -> list[str]:
    settings = ("method.alpha=0.1", "train.epochs=12", "train.checkpoint_steps=2")
    chosen = [part for setting in settings for part in ("--set", setting)]
    run = ["--output", str(output / "run"), "--resume"]
    return ["train", "digits_lt", "--method", "lade", *chosen, *run]


def _features(inputs: Path, output: Path) -> list[str]:
    network = ["--model", "timm:test_efficientnet", "--weights", f"{inputs}/tiny.pth"]
    size = ["--image-size", "32", "--views", "8"]
    data = f"folder:{inputs}/photos"
    return ["features", data, *network, *size, "-o", str(output / "bank")]


def _tuning(inputs: Path, output: Path) -> list[str]:
    settings = ("method.name=lade", "train.epochs=3", "train.checkpoint_steps=2")
    chosen = [part for setting in settings for part in ("--set", setting)]
    grid = ["--alphas", "0.01,0.1", "--lams", "0.1,0.5"]
    return ["tune", "digits_lt", *chosen, *grid, "-o", str(output / "search")]


def _reproducing(inputs: Path, output: Path) -> list[str]:
    settings = ("train.epochs=2", "data.imbalance_ratio=4", "model.name=plain_net")
    chosen = [part for setting in settings for part in ("--set", setting)]
    data = ["--plugin", str(PLAIN_NET), "--data-root", str(inputs)]
    runs = ["--runs", str(output / "runs"), "--jobs", "2", "--quick"]
    table = ["--csv", str(output / "table.csv"), "--force"]
    return ["reproduce", "table9", *data, *runs, *chosen, *table]


def _serving(inputs: Path, output: Path) -> list[str]:
    state = ["--port", "0", "--state", str(output / "sites.sqlite")]
    held_out = ["--held-out", str(inputs / "val.safetensors")]
    return ["serve", str(inputs / "digits.onnx"), *state, *held_out]


SUBJECTS = (
    Subject("training", _training, 0.4, 9),
    Subject("features", _features, 0.3, 4),
    Subject("tuning", _tuning, 0.4, 3),
    Subject("server", _serving, 1.5, 3),
    Subject("reproduce", _reproducing, 0.5, 1),
)
ROTA = [subject for subject in SUBJECTS for _ in range(subject.share)]
random.Random(0).shuffle(ROTA)


class Command:
    """A command in a process that is forked from this one."""

    def __init__(self, arguments: list[str], said: Path) -> None:
        self.said, self.started = said, time.monotonic()
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(arguments)

    def _run(self, arguments: list[str]) -> None:
        code: object = 1
        try:
            os.setsid()
            log = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
            sys.argv = ["tailshift", *arguments]
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(code if isinstance(code, int) else 1)

    def ended(self, seconds: float) -> bool:
        """Wait so long at most; return whether it has ended."""
        end = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                return False
            else:
                time.sleep(0.005)
        return True

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.code is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end; it hangs if that takes too long."""
        if not self.ended(LONGEST):
            self.send(signal.SIGABRT)
            raise Lost(f"it hangs: {self.last_words()}")
        assert self.code is not None
        return self.code

    def last_words(self) -> str:
        """Return what it said last."""
        lines = self.said.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


def _descendants(pid: int) -> set[int]:
    """Return the processes below one, also those in sessions of their own."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait_for(processes: set[int]) -> None:
    """Wait until they have ended: some save themselves when their parent is gone."""
    end = time.monotonic() + LONGEST
    while any(map(_is_running, processes)):
        if time.monotonic() > end:
            raise Lost("what it had started has not ended")
        time.sleep(0.05)


class Disk:
    """A small disk of its own for all outputs; without root, a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ballast = folder, folder / "ballast"
        folder.mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(folder):
            options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
            subprocess.run(["mount", *options], check=False, capture_output=True)
        self.is_small = os.path.ismount(folder)

    def fill(self, spare: int) -> None:
        """Leave no more than some bytes."""
        with self.ballast.open("ab") as file:
            while (free := os.statvfs(self.folder)).f_bavail * free.f_frsize > spare:
                size = free.f_bavail * free.f_frsize - spare
                try:
                    file.write(b"\0" * min(size, 2**22))
                    file.flush()
                except OSError:
                    return

    def empty(self) -> None:
        """Give it back."""
        self.ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        if self.is_small:
            subprocess.run(["umount", str(self.folder)], check=False)


def contents(folder: Path) -> dict[str, object]:
    """Return what a folder holds, file by file, but for times and spare copies."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        is_spare = ".previous." in name or ".damaged" in name or path.suffix == ".log"
        if path.is_dir() or is_spare:
            continue
        if path.suffix == ".safetensors" and not path.name.startswith("checkpoint"):
            arrays = load_file(path)
            found[name] = {
                key: (str(value.dtype), value.shape, _digest(value.tobytes()))
                for key, value in sorted(arrays.items())
            }
        elif path.suffix == ".jsonl":
            lines = path.read_text().splitlines()
            found[name] = [_without_times(json.loads(line)) for line in lines]
        elif path.name in ("environment.json",) or path.suffix == ".safetensors":
            found[name] = "is there"
        elif path.suffix == ".json":
            found[name] = _without_times(json.loads(path.read_text()))
        else:
            found[name] = _digest(path.read_bytes())
    return found


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not TIMES.search(k)}
        return {k: _without_times(v) for k, v in kept.items() if "checksum" not in k}
    return value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def make_inputs(folder: Path) -> None:
    """Make what the commands read, once."""
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "cifar-100-python").mkdir(parents=True)
    chance = np.random.default_rng(0)
    for c, count in enumerate((60, 30, 20, 10)):
        (folder / "photos" / f"kind {c}").mkdir(parents=True)
        for i in range(count):
            pixels = chance.normal(60 + 40 * c, 30, (40, 48, 3)).clip(0, 255)
            image = Image.fromarray(pixels.astype(np.uint8))
            image.save(folder / "photos" / f"kind {c}" / f"{i:03}.png")
    torch.manual_seed(0)
    network = TimmBackbone("test_efficientnet").model
    torch.save(network.state_dict(), folder / "tiny.pth")
    for name, count in (("train", 12), ("test", 2)):
        labels = np.tile(np.arange(100), count)
        data = chance.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        table = {"data": data, "fine_labels": labels.tolist()}
        (folder / "cifar-100-python" / name).write_bytes(pickle.dumps(table, 2))
    names = {"fine_label_names": [f"name {c}" for c in range(100)]}
    (folder / "cifar-100-python" / "meta").write_bytes(pickle.dumps(names, 2))
    settings = ["method.name=softmax", "train.epochs=20"]
    if (pid := os.fork()) == 0:  # training and export may start threads
        try:
            config = ts.load_recipe("digits_lt", settings)
            run = ts.train(config, output=folder / "served")
            export_onnx(run, folder / "digits.onnx")
            run.predictions("val").save(folder / "val.safetensors")
            request = {"images": _digits(), "site": "harbour"}
            (folder / "request.json").write_text(json.dumps(request))
            (folder / "done").touch()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert (folder / "done").exists(), "the inputs could not be made"


def _digits() -> list[str]:
    """Return some test digits as encoded images."""
    images: Any = DATASETS.get("digits_lt")().load(root=None, seed=0).test
    encoded = []
    for i in range(16):
        file = io.BytesIO()
        Image.fromarray(images.images[31 * i % 500, 0].numpy()).save(file, "PNG")
        encoded.append(base64.b64encode(file.getvalue()).decode())
    return encoded


class Round:
    """One command, knocked and resumed until it ends.

    Args:
        seed: Number of the round; all that is drawn follows from it.
        work: Folder of inputs and references.
        disk: Where the command writes.
        log: Where each knock is written down.
    """

    def __init__(self, seed: int, work: Path, disk: Disk, log: "Log") -> None:
        self.seed, self.subject = seed, ROTA[seed % len(ROTA)]
        self.chance = random.Random(seed)
        self.work, self.disk, self.log = work, disk, log
        self.inputs = work / "inputs"
        self.folder = disk.folder / "output"
        self.said = work / f"round{seed}.log"
        self.num_knocks, self.num_refused, self.longest = 0, 0, 0.0
        self.backups: dict[Path, tuple[bytes, bytes]] = {}  # whole, and as damaged

    def run(self, most: int) -> None:
        """Knock, resume, compare."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.said.unlink(missing_ok=True)
        for name, content in BYSTANDERS.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
        before = self._inputs()
        if self.subject.name == "server":
            self._serve(most)
        else:
            self._knock_and_finish(most)
        for name, content in BYSTANDERS.items():
            if (self.folder / name).read_bytes() != content:
                raise Lost(f"{name}, which lay beside the output, was changed")
        if self._inputs() != before:
            raise Lost("an input was changed")
        shutil.rmtree(self.folder)
        self.said.unlink()

    def _inputs(self) -> dict[str, object]:
        return contents(self.inputs)

    def _arguments(self, output: Path) -> list[str]:
        return self.subject.arguments(self.inputs, output)

    def _knock_and_finish(self, most: int) -> None:
        expected = self._reference()
        while self.num_knocks < most:
            command = Command(self._arguments(self.folder), self.said)
            if self._knock(command, self.chance.uniform(0, self.longest)):
                break
        command = Command(self._arguments(self.folder), self.said)
        if command.wait() != 0:
            self._put_back(command)
            command = Command(self._arguments(self.folder), self.said)
        if command.wait() != 0:
            raise Lost(f"the last resume ended with {command.code}")
        found = contents(self.folder)
        for name in BYSTANDERS:
            found.pop(name)
        if found != expected:
            names = sorted(
                name
                for name in {*found, *expected}
                if found.get(name) != expected.get(name)
            )
            raise Lost(f"not as without knocks: {', '.join(names)}")

    def _reference(self) -> dict[str, object]:
        folder = self.work / "references" / self.subject.name
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "output").mkdir(parents=True)
            said = folder / "said.log"
            # In the same place as the rounds: some files hold the path.
            command = Command(self._arguments(self.folder), said)
            assert command.wait() == 0, said.read_text()
            took = time.monotonic() - command.started
            for path in self.folder.iterdir():
                if path.name not in ("notes.txt", "figures"):
                    shutil.move(path, folder / "output" / path.name)
            _say(f"{self.subject.name}: {took:.1f} s without knocks")
            (folder / "done").write_text(str(took))
        self.longest = self.subject.within * float((folder / "done").read_text())
        return contents(folder / "output")

    def _knock(self, command: Command, seconds: float) -> bool:
        """Knock a command; return whether it has ended by itself, as it should."""
        knock = self.chance.choice(KNOCKS)
        if knock == "full disk" and not self.disk.is_small:
            knock = "SIGKILL"
        spare = self.chance.randrange(200_000)
        ends_all, where = self.chance.random() < 0.5, self.chance.random()
        if command.ended(seconds):
            if command.code:
                self._put_back(command)
            return command.code == 0
        below = _descendants(command.pid)
        if knock == "full disk":
            self.disk.fill(spare)
            if not command.ended(20):  # it may have nothing to write for long
                command.send(signal.SIGKILL)
        elif knock in ("SIGTERM", "SIGINT"):
            command.send(signal.Signals[knock])
        else:
            command.send(signal.SIGKILL)
            for pid in below if ends_all or knock != "SIGKILL" else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        code = command.wait()
        _wait_for(below)
        self.disk.empty()
        self._check_end(knock, command)
        damage = knock in ("cut", "flipped")
        file, outcome = self._damage(knock, where) if damage else ("", "resumed")
        self._check_words()
        self.num_knocks += 1
        self.log.add(self.seed, self.subject.name, knock, seconds, file, code, outcome)
        return code == 0

    def _check_end(self, knock: str, command: Command) -> None:
        """Refuse an exit code that does not tell what has happened."""
        code, words = command.code, command.last_words()
        is_full = knock == "full disk" and re.search("space|disk", words)
        if code == 2 and not is_full:
            self._put_back(command)  # damaged before, and refused only now
        codes = {"SIGTERM": (75, -signal.SIGTERM), "SIGINT": (130, -signal.SIGINT)}
        if code not in (0, 2, *codes.get(knock, (-signal.SIGKILL,))):
            raise Lost(f"{knock} ended it with {code}: {words}")

    def _damage(self, knock: str, where: float) -> tuple[str, str]:
        """Damage the file that was written last, resume, and put it back if refused."""
        for path, (content, damaged) in self.backups.items():
            if path.exists() and path.read_bytes() == damaged:  # not looked at yet
                path.write_bytes(content)
        files = [
            path
            for path in self.folder.rglob("*")
            if path.is_file()
            and path.stat().st_size
            and path.name != ".lock"
            and str(path.relative_to(self.folder)) not in BYSTANDERS
        ]
        if not files:
            return "", "nothing was written yet"
        path = max(files, key=lambda path: path.stat().st_mtime_ns)
        content = path.read_bytes()
        _spoil(path, knock, where)
        name = str(path.relative_to(self.folder))
        self.backups[path] = content, path.read_bytes()
        command = Command(self._arguments(self.folder), self.said)
        if not command.ended(self.longest):
            command.send(signal.SIGTERM)
        if command.wait() in (0, 75, -signal.SIGTERM):
            return name, "resumed"
        self._put_back(command)
        return name, "refused by name, put back"

    def _put_back(self, command: Command) -> None:
        """Put back the damaged file that a command has refused, as from a backup."""
        words = command.last_words()
        named = [path for path in self.backups if str(path) in words]
        named = named or [path for path in self.backups if path.name in words]
        if command.code != 2 or not words.startswith("error: ") or not named:
            raise Lost(f"it ended with {command.code}: {words}")
        for path in named:
            path.write_bytes(self.backups.pop(path)[0])
        self.num_refused += 1

    def _check_words(self) -> None:
        said = self.said.read_text(errors="replace")
        if "Traceback" in said or "error: this should never" in said:
            raise Lost("a traceback")

    def _serve(self, most: int) -> None:
        """Knock a server under load; what it was told, and has told, must stay."""
        told = 0
        while self.num_knocks < most:
            self.said.touch()
            begin = self.said.stat().st_size
            command = Command(self._arguments(self.folder), self.said)
            clients = []
            try:
                address = self._address(command, begin)
                seen = _images_seen(address) if told else 0
                if seen < told:
                    raise Lost(f"of {told} images that were seen, {seen} are left")
                clients.append(self._client(address))
                time.sleep(self.chance.uniform(0.5, self.subject.within))
                told = _images_seen(address)
                time.sleep(1.3)  # more than a flush takes
                self._knock_server(command)
            except OSError as error:
                raise Lost(f"it does not answer: {error}") from None
            finally:
                for client in clients:
                    os.kill(client, signal.SIGKILL)
                    os.waitpid(client, 0)
                command.send(signal.SIGKILL)
                command.wait()
            file = sqlite3.connect(self.folder / "sites.sqlite")
            whole = file.execute("PRAGMA integrity_check").fetchone()
            file.close()
            if whole != ("ok",):
                raise Lost(f"the database is not whole: {whole}")

    def _knock_server(self, command: Command) -> None:
        knock = self.chance.choice(KNOCKS)
        spare, where = self.chance.randrange(200_000), self.chance.random()
        file, outcome = "", "resumed"
        if knock == "full disk" and not self.disk.is_small:
            knock = "SIGKILL"
        if knock == "full disk":
            self.disk.fill(spare)
            time.sleep(1.5)
            if command.ended(0):
                raise Lost(f"a full disk ended it with {command.code}")
            self.disk.empty()
            time.sleep(1.5)  # it goes on writing
            command.send(signal.SIGTERM)
        else:
            number = knock if knock in ("SIGTERM", "SIGINT") else "SIGKILL"
            command.send(signal.Signals[number])
        seconds = time.monotonic() - command.started
        code = command.wait()
        if code not in (0, 75, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT):
            raise Lost(f"{knock} ended it with {code}")
        if knock in ("cut", "flipped"):
            file, outcome = self._damage_state(knock, where)
        self._check_words()
        self.num_knocks += 1
        self.log.add(self.seed, "server", knock, seconds, file, code, outcome)

    def _damage_state(self, knock: str, where: float) -> tuple[str, str]:
        """Damage a database, which has no checksums: no more than a clear end is asked.

        Whatever comes of it, the files are put back.
        """
        files = {path: path.read_bytes() for path in self.folder.glob("sites.sqlite*")}
        path = max(files, key=lambda path: path.stat().st_mtime_ns)
        _spoil(path, knock, where)
        self.said.touch()
        begin = self.said.stat().st_size
        command = Command(self._arguments(self.folder), self.said)
        try:
            self._address(command, begin)
            outcome = "started, put back"
        except Lost:
            words = command.last_words()
            if command.code != 2 or not words.startswith("error: "):
                raise
            self.num_refused += 1
            outcome = "refused by name, put back"
        command.send(signal.SIGKILL)
        command.wait()
        for left in self.folder.glob("sites.sqlite*"):
            left.unlink()
        for kept, content in files.items():
            kept.write_bytes(content)
        return path.name, outcome

    def _address(self, command: Command, begin: int) -> str:
        """Return where the server listens, once it says so."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            if command.ended(0):
                raise Lost(f"it did not start: {command.last_words()}")
            with self.said.open(errors="replace") as file:
                file.seek(begin)
                found = re.findall(r"http://127\.0\.0\.1:\d+", file.read())
            if found:
                with contextlib.suppress(OSError):
                    _ask(found[-1], "/healthz")
                    return str(found[-1])
            time.sleep(0.05)
        raise Lost("it did not start in time")

    def _client(self, address: str) -> int:
        """Send digits of one site in a process of its own, as fast as it is told."""
        content = json.loads((self.inputs / "request.json").read_text())
        if (pid := os.fork()) == 0:
            try:
                while True:
                    _ask(address, "/predict", content)
                    time.sleep(0.02)
            finally:
                os._exit(0)
        return pid


def _images_seen(address: str) -> int:
    try:
        site = _ask(address, "/site?site=harbour")
    except urllib.error.HTTPError:  # no image of it has come
        return 0
    return int(site["summary"]["images_seen"])


def _spoil(path: Path, knock: str, where: float) -> None:
    """Cut a file short, or flip one of its bits."""
    content = path.read_bytes()
    place = int(where * len(content))
    if knock == "cut":
        os.truncate(path, place)
    elif content:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([content[place] ^ 1 << place % 8]))


def _ask(address: str, path: str, content: Any = None) -> Any:
    request = urllib.request.Request(f"{address}{path}")
    if content is not None:
        request.data = json.dumps(content).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Log:
    """One row a knock, in a CSV file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(",".join(COLUMNS) + "\n")
        describe = ["git", "describe", "--always", "--dirty"]
        here = Path(__file__).parent
        done = subprocess.run(describe, cwd=here, capture_output=True, text=True)
        self.commit = done.stdout.strip() or "unknown"

    def rows(self) -> list[dict[str, str]]:
        """Return what was written so far."""
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def add(self, *fields: object) -> None:
        """Write a row."""
        values = [f"{v:.2f}" if isinstance(v, float) else v for v in fields]
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([*values, self.commit])


def _rounds(log: Log, kills: int) -> Iterator[int]:
    """Yield seeds that were not used, until there are as many knocks as asked for."""
    first = 1 + max((int(row["seed"]) for row in log.rows()), default=-1)
    for seed in itertools.count(first):
        if len(log.rows()) >= kills:
            return
        yield seed


def soak(options: argparse.Namespace) -> int:
    """Run the rounds; return how many have lost something."""
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    with hold_lock(work):  # two would knock each other's commands
        return _soak(options, work)


def _soak(options: argparse.Namespace, work: Path) -> int:
    make_inputs(work / "inputs")
    log, disk, failures = Log(options.log), Disk(work / "disk"), 0
    seeds = [options.seed] if options.seed is not None else _rounds(log, options.kills)
    try:
        for seed in seeds:
            a_round = Round(seed, work, disk, log)
            started = time.monotonic()
            try:
                a_round.run(IN_A_ROUND)
            except Lost as loss:
                failures += 1
                disk.empty()
                name = a_round.subject.name
                log.add(seed, name, "", 0.0, "", "", f"LOST: {loss}")
                kept = work / f"lost{seed}"
                shutil.copytree(a_round.folder, kept, dirs_exist_ok=True)
                shutil.rmtree(a_round.folder)
                _say(f"round {seed} ({name}): {loss}; kept in {kept}")
                continue
            took = time.monotonic() - started
            _say(
                f"round {seed} ({a_round.subject.name}): {a_round.num_knocks} knocks, "
                f"{a_round.num_refused} refused files, {took:.0f} s"
            )
    finally:
        disk.close()
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--log", type=Path, default=Path("build/kills.csv"))
    parser.add_argument("--seed", type=int, help="repeat this round alone")
    parser.add_argument("--work", type=Path, default=Path("build/soak"))
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    extraction_work.BATCH, extraction_work.MARKED = 4, 2  # or the photos were one batch
    sys.exit(min(soak(parser.parse_args()), 1))
