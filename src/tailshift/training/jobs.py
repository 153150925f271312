"""Train several runs at once, each in its own process."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from rich.console import Console
from rich.progress import TaskID

from tailshift import workers
from tailshift.config import RunConfig
from tailshift.cores import num_cores
from tailshift.data.image_loader import JOBS
from tailshift.registry import loaded_plugins
from tailshift.runs.files import LOG, resume_command
from tailshift.text import printable
from tailshift.training import progress
from tailshift.training.distributed import is_started_with_others
from tailshift.training.resolve import with_validation
from tailshift.training.train import train


@dataclass(frozen=True)
class Job:
    """A run to train, and its directory."""

    config: RunConfig
    directory: Path
    is_held_out: bool = False
    """Whether to hold validation images out of the training images."""


@dataclass(frozen=True)
class Failure:
    """A failed run, and the reason."""

    job: Job
    sentence: str
    log: Path | None
    """Log of the run; None if it had not started."""
    is_diverged: bool = False
    """Whether a loss, gradient or weight was not finite."""

    def __str__(self) -> str:
        where = f" Its log is {self.log}." if self.log else ""
        return f"{self.job.directory}: {self.sentence}{where}"


def num_at_once(jobs: int, num_runs: int) -> int:
    """Return the number of runs to train at once, at most all of them.

    Args:
        jobs: Requested number; 0 means one per GPU, or one per core without GPUs.
        num_runs: Number of runs to train.

    Example:
        >>> num_at_once(4, 3), num_at_once(1, 3)
        (3, 1)
    """
    if jobs < 0:
        raise ValueError(
            f"`jobs` must be >= 0 (0: one per GPU or core), but is {jobs}."
        )
    at_once = min(jobs or torch.cuda.device_count() or num_cores(), num_runs)
    if at_once > 1 and is_started_with_others():
        raise ValueError(
            f"`jobs` must be 1 under torchrun or srun, but is {jobs}: their processes "
            "train one run together. Start the command without them."
        )
    return at_once


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    *,
    data_root: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    advice: str,
    on_end: Callable[[Job, Failure | None], None] = lambda job, failure: None,
) -> list[Failure]:
    """Train runs, several at once, each in its own process.

    Each process gets a fraction of the threads, or a GPU. A failed run does not stop
    the others. Ctrl-C and SIGTERM are forwarded: the first lets all runs save and end,
    a second one ends them at once. If this process is killed, the runs save and end.

    Args:
        jobs: Runs to train.
        at_once: Number of processes.
        data_root: Folder of the data, if it is read from disk.
        resume: Resume existing runs.
        force: Replace existing runs.
        advice: Sentence that says how to resume, printed after a signal.
        on_end: Called with each run that has ended, and its failure if it failed.

    Returns:
        The failures, in the order of their occurrence.

    Raises:
        KeyboardInterrupt: After Ctrl-C, with the advice.
        Preempted: After SIGTERM.
    """
    if at_once > 1:
        _fetch(jobs, data_root)
    crew = _Crew(jobs, at_once, on_end)
    options = {"data_root": data_root and str(data_root)}
    with crew.children.forward_signals():
        try:
            crew.work(options | {"resume": resume, "force": force})
        finally:
            crew.children.end()
    if signal.SIGTERM in crew.children.signals:
        progress.print_line(Console(stderr=True), advice)
        raise workers.Preempted
    if crew.children.signals:
        raise KeyboardInterrupt(advice)
    return crew.failures


def _fetch(jobs: Sequence[Job], data_root: str | Path | None) -> None:
    """Load each data set once, so that no two runs download it at the same time."""
    root = Path(data_root) if data_root is not None else None
    one_each = {repr(job.config.data): job.config for job in jobs}
    for config in one_each.values():
        with suppress(Exception):  # each of its runs reports the error
            config.data.load(root=root, seed=config.seed)


_DIVERGED = {"diverged": True}
"""Record that a run sends if its loss diverged."""


class _JobChild:
    """A job under way: its child process, its log and its errors."""

    def __init__(self, job: Job, slot: int) -> None:
        self.job, self.slot = job, slot
        self.errors: list[str] = []
        self.log: IO[str] | None = None
        self.is_diverged = False
        self._unlogged: list[str] = []

    def keep(self, line: str) -> None:
        """Write a line to the log, once the run has its directory."""
        if line.startswith("error: "):
            self.errors.append(line.removeprefix("error: "))
        self._unlogged.append(line)
        if self.log is not None:
            with suppress(OSError):  # the run itself reports a full disk
                self.log.writelines(f"{text}\n" for text in self._unlogged)
                self.log.flush()
            self._unlogged.clear()

    def open_log(self) -> None:
        """Open the log once the run holds its directory."""
        if self.log is None:
            with suppress(OSError):
                path = self.job.directory / LOG
                self.log = path.open("a", encoding="utf-8")

    def failure(self, code: int) -> Failure:
        """Return the failure, from the run's errors or its exit code."""
        directory = self.job.directory
        sentence = " ".join(self.errors)
        if not sentence:
            reason = workers.exit_reason(code)
            sentence = f"{reason} Resume with `{resume_command(directory)}`."
        log = directory / LOG if self.log else None
        return Failure(self.job, sentence, log, self.is_diverged)


class _Crew:
    """Running and waiting jobs, with their progress bars."""

    def __init__(
        self,
        jobs: Sequence[Job],
        at_once: int,
        on_end: Callable[[Job, Failure | None], None],
    ) -> None:
        self.failures: list[Failure] = []
        self.children = workers.Children()
        self._waiting, self._on_end = list(jobs), on_end
        self._free = list(range(at_once))
        self._at_once, self._num_ended = at_once, 0
        self._running: dict[workers.Child, _JobChild] = {}
        self._bar = progress.progress_bar(Console(stderr=True))
        self._tasks: dict[Path, TaskID] = {}
        parents = [job.directory.absolute().parent for job in jobs]
        self._parent = os.path.commonpath(parents)
        self._num_jobs = len(jobs)

    def work(self, options: dict[str, object]) -> None:
        """Train until no job waits; after a signal, until the running ones end."""
        with self._bar:  # a bar for each run under way, on a terminal
            while True:
                while self._waiting and self._free and not self.children.signals:
                    self._start(self._waiting.pop(0), self._free.pop(0), options)
                if not self._running:
                    return
                child, line = self.children.next_line()
                if line is None:
                    self._ended(self._running.pop(child), child.close())
                else:
                    self._heard(self._running[child], line)

    def _start(self, job: Job, slot: int, options: dict[str, object]) -> None:
        spec = {
            "config": job.config.to_mapping(),
            "output": str(job.directory),
            "is_held_out": job.is_held_out,
            **options,
        }
        plugins = [part for path in loaded_plugins() for part in ("--plugin", path)]
        command = [sys.executable, "-m", "tailshift", *plugins, "job", json.dumps(spec)]
        environment = _environment(job.config, slot, self._at_once)
        child = self.children.start(command, environment)
        self._running[child] = _JobChild(job, slot)

    def _heard(self, child: _JobChild, line: str) -> None:
        if line.startswith(progress.RECORD):
            fields = json.loads(line.removeprefix(progress.RECORD))
            if fields == _DIVERGED:
                child.is_diverged = True
            else:
                child.open_log()
                self._show(child, fields)
            return
        child.keep(line)
        is_shown = self._bar.disable or line.startswith("warning: ")
        if self.children.signals or line.startswith("error: "):
            is_shown = False  # what a stopped run prints is in its log
        if is_shown:
            self._print(f"{self._name(child.job)}: {line}")

    def _ended(self, child: _JobChild, code: int) -> None:
        if child.log is not None:
            child.log.close()
        self._free.append(child.slot)
        if (task := self._tasks.pop(child.job.directory, None)) is not None:
            self._bar.remove_task(task)
        self._num_ended += 1
        if code and self.children.signals and not child.errors:
            return  # stopped, and saved
        failure = child.failure(code) if code else None
        if failure is not None:
            self.failures.append(failure)
        ending = f"failed: {failure.sentence}" if failure else "finished"
        place = f"({self._num_ended} of {self._num_jobs})"
        self._print(f"{self._name(child.job)}: {ending} {place}")
        self._on_end(child.job, failure)

    def _show(self, child: _JobChild, fields: dict[str, Any]) -> None:
        """Show the progress of a run."""
        task = self._tasks.get(child.job.directory)
        if task is None:
            task = self._bar.add_task(self._name(child.job), **progress.NO_FIELDS)
            self._tasks[child.job.directory] = task
        self._bar.update(task, **fields)

    def _name(self, job: Job) -> str:
        return printable(os.path.relpath(job.directory.absolute(), self._parent))

    def _print(self, text: str) -> None:
        progress.print_line(self._bar.console, text)


def _environment(config: RunConfig, slot: int, at_once: int) -> dict[str, str]:
    """Return a run's environment: its threads and GPUs, and our modules."""
    changes = {
        "OMP_NUM_THREADS": str(max(torch.get_num_threads() // at_once, 1)),
        JOBS: str(at_once),
        "PYTHONIOENCODING": "utf-8",
        # The child imports the same modules, from any working directory.
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "PYTHONSAFEPATH": "1",
    }
    if config.train.accelerator in ("auto", "cuda") and torch.cuda.device_count():
        changes["CUDA_VISIBLE_DEVICES"] = _gpus(slot, config.train.devices)
    return os.environ | changes


def _gpus(slot: int, num_devices: int) -> str:
    """Return the GPUs of the run in a slot, in turn."""
    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    visible = names.split(",")[:count]
    chosen = [slot * num_devices + i for i in range(min(num_devices, count))]
    return ",".join(visible[number % count] for number in chosen)


class _WithoutReader(io.TextIOWrapper):
    """A text stream that drops text once nobody reads it.

    A run prints to the process that started it. If that process is killed, a broken
    pipe must not end the run before it is saved.
    """

    @classmethod
    def of(cls, stream: Any) -> "_WithoutReader":
        return cls(stream.buffer, "utf-8", "replace")

    def write(self, text: str) -> int:
        with suppress(BrokenPipeError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            super().flush()


def run_job(text: str) -> bool:
    """Train one of several runs, in a child process of `run_jobs`.

    Args:
        text: Configuration, folder and options of the run, as JSON.

    Returns:
        Whether the run is finished.
    """
    spec = json.loads(text)
    sys.stdout, sys.stderr = (
        _WithoutReader.of(sys.stdout),
        _WithoutReader.of(sys.stderr),
    )
    workers.save_and_end_with_parent()
    progress.relay_progress(sys.stdout)
    config = RunConfig.from_mapping(spec.pop("config"))
    root, data = spec["data_root"] and Path(spec["data_root"]), None
    if spec.pop("is_held_out"):
        whole = config.data.load(root=root, seed=config.seed)
        data = with_validation(whole, seed=config.seed)
    try:
        return train(config, data=data, verbose=True, **spec).is_finished
    except FloatingPointError:
        progress.write_record(sys.stdout, _DIVERGED)
        raise
