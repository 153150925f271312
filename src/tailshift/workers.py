"""Child processes and signals: starting, stopping and ending them together."""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, NoReturn

__all__ = [
    "PREEMPTED",
    "STOP_SIGNALS",
    "Child",
    "Children",
    "Preempted",
    "StopRequest",
    "block_signals",
    "end_with_parent",
    "exit_on_signals",
    "exit_reason",
    "hold_signals",
    "ignore_signals",
    "leave_signals_to_parent",
    "running",
    "save_and_end_with_parent",
    "stop_data_loader",
    "stop_on_interrupt",
]

PREEMPTED = 75
"""Exit code after SIGTERM ("temporary failure"): run the same command again."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 30.0
"""Time for a run to save itself after its parent process has ended."""

STOP_SECONDS = 5.0
"""Time for all workers of a data loader to stop before they are killed."""


class Preempted(SystemExit):
    """The process received SIGTERM; finished work is saved if a run had begun.

    Args:
        directory: The run to resume; None if none had begun.
    """

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(PREEMPTED)
        self.directory = directory


@contextmanager
def _handle(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[dict[int, Any]]:
    """Handle signals while the block runs; yield the handlers it replaces.

    Only the main thread can set handlers: in other threads nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    previous = {int(n): signal.getsignal(n) for n in numbers} if is_main else {}
    with ExitStack() as stack:  # restores all, also if a restored handler raises
        for number, before in previous.items():
            stack.callback(signal.signal, number, before)
            signal.signal(number, handler)
        yield previous


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """End the block on Ctrl-C (exit code 130) or SIGTERM (exit code 75).

    Ctrl-C stays ignored where it is ignored, as in a background job.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if number == signal.SIGINT:
            _exit_if_importing(130, frame)
            _ignore_keys_at_exit()
            raise KeyboardInterrupt
        _exit_if_importing(PREEMPTED, frame)
        raise Preempted

    has_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _handle(STOP_SIGNALS if has_default else (signal.SIGTERM,), end):
        yield


def _ignore_keys_at_exit() -> None:
    """Ignore Ctrl-C while Python ends: it prints a traceback or changes the code."""
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _exit_if_importing(code: int, frame: FrameType | None) -> None:
    """End the process at once if the signal arrived during an import.

    A module may swallow an exception raised in it, or fail later because it is half
    imported. Nothing is open yet that could be lost.

    Args:
        code: The exit code.
        frame: The frame that the signal interrupted.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(code)
        frame = frame.f_back


class StopRequest:
    """Whether the user or a scheduler has asked to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_preemption = False
        """Whether it was SIGTERM: time is short, so nothing is evaluated."""


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second one acts at once."""
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        request.is_set = True
        request.is_preemption |= number == signal.SIGTERM
        signal.signal(number, previous[number])
        _ignore_keys_at_exit()

    with _handle(STOP_SIGNALS, note) as previous:
        yield request


@contextmanager
def hold_signals() -> Iterator[None]:
    """Hold signals back while the block runs, and deliver them after it.

    Otherwise a handler's exception may be raised inside a reader written in C or Rust,
    which replaces it by its own: the signal is lost and the file looks damaged.
    """
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    def deliver() -> None:
        if held:
            number = held.pop()
            try:
                signal.raise_signal(number)
            finally:
                deliver()

    numbers = signal.valid_signals()
    handled = [number for number in numbers if callable(signal.getsignal(number))]
    with ExitStack() as stack:
        stack.callback(deliver)  # runs last: all handlers are restored by then
        stack.enter_context(_handle(handled, hold))
        yield


@contextmanager
def block_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals while the block runs: processes started in it inherit that.

    Otherwise a signal that arrives before such a process is ready would run its
    parent's handler, or end the process with a traceback.

    Args:
        numbers: Signals to block; the pending ones are delivered afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM while Python ends, which takes PyTorch some time."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # Python resets any other handler


class Child:
    """A child process started with a command; a thread forwards its output lines.

    Args:
        command: The command line.
        environment: The environment variables.
        output: Queue for its lines; None follows the last line.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: "SimpleQueue[tuple[Child, str | None]]",
    ) -> None:
        self.num_signals = 0
        # In a session of its own: otherwise Ctrl-C would reach it twice, from the
        # terminal too.
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,  # held open: its end means that the parent ended
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(output,), daemon=True).start()

    def _listen(self, output: "SimpleQueue[tuple[Child, str | None]]") -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            output.put((self, line.decode(errors="replace").rstrip("\r\n")))
        self._process.wait()
        output.put((self, None))

    def send(self, number: int) -> None:
        """Send a signal to the child and to all processes that it has started."""
        with suppress(ProcessLookupError):
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, number)

    def ask_to_end(self) -> None:
        """Let the child save and end, as if its parent had ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Wait for a child that was asked to end; kill it after the grace period."""
        try:
            self._process.wait(GRACE_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self.send(getattr(signal, "SIGKILL", signal.SIGTERM))

    def close(self) -> int:
        """Close the streams of a child that has ended; return its exit code."""
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return code


def exit_reason(code: int) -> str:
    """Return how a process ended that gave no reason.

    Example:
        >>> exit_reason(-9)
        'its process was ended by SIGKILL (is there enough memory?).'
        >>> exit_reason(75)
        'its process was told to stop.'
        >>> exit_reason(3)
        'its process ended with exit code 3.'
    """
    if code in (130, PREEMPTED):
        return "its process was told to stop."
    if code >= 0:
        return f"its process ended with exit code {code}."
    why = " (is there enough memory?)" if code == -9 else ""
    return f"its process was ended by {signal.Signals(-code).name}{why}."


class Children:
    """Child processes that run at the same time and receive this process's signals."""

    def __init__(self) -> None:
        self.running: list[Child] = []
        self.signals: list[int] = []
        """Signals that this process has received."""
        self._output: SimpleQueue[tuple[Child, str | None]] = SimpleQueue()

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a child process."""
        child = Child(command, environment, self._output)
        self.running.append(child)
        self._forward()  # a signal may have arrived while it was started
        return child

    def next_line(self) -> tuple[Child, str | None]:
        """Wait for a line of any child; None means that the child has ended."""
        child, line = self._output.get()
        if line is None:
            self.running.remove(child)
        return child, line

    def end(self) -> None:
        """Let all children that still run save and end."""
        for child in self.running:
            child.ask_to_end()
        for child in self.running:
            child.wait()

    @contextmanager
    def forward_signals(self) -> Iterator[None]:
        """Forward Ctrl-C and SIGTERM to the children; a third signal kills them."""

        def note(number: int, frame: FrameType | None) -> None:
            is_third = len(self.signals) > 1 and sys.platform != "win32"
            self.signals.append(signal.SIGKILL if is_third else number)
            self._forward()

        with _handle(STOP_SIGNALS, note):
            yield

    def _forward(self) -> None:
        """Send each child the signals that it has not received."""
        for child in self.running:
            while child.num_signals < len(self.signals):
                child.num_signals += 1
                child.send(self.signals[child.num_signals - 1])


def end_with_parent(end: Callable[[], object] = lambda: os._exit(1)) -> None:
    """Call a function, in a thread, once the process that started this one has ended.

    Use it in every child process: a parent that is killed cannot stop its children.
    A process started by `multiprocessing` waits for its parent's sentinel. One that
    was started with a command waits for the end of its input, which `Child` holds open.

    Args:
        end: What to do; by default the process ends at once.
    """
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is None:
            os.read(0, 1)  # nothing is ever written
        else:
            parent.join()
        end()

    threading.Thread(target=watch, daemon=True).start()


def save_and_end_with_parent() -> None:
    """Let a run save itself and end once the process that started it has ended."""

    def end() -> None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):  # nobody reads them any more
            os.dup2(nothing, output)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(PREEMPTED)

    end_with_parent(end)


@contextmanager
def running(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Start processes of `multiprocessing`; end those that still run after the block.

    They must call `end_with_parent` and ignore SIGINT, which a terminal sends to all.
    """
    try:
        with hold_signals(), block_signals(signal.SIGINT):  # each is started completely
            for process in processes:
                process.start()
        yield
    finally:
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            process.terminate()
        for process in alive:  # another Ctrl-C may end the wait
            process.join()


def leave_signals_to_parent(worker: int) -> None:
    """Ignore SIGINT and SIGTERM in a data loader's worker; end with its parent.

    A terminal and a scheduler send them to every process, but the main process
    finishes its step first. SIGTERM from the parent itself ends the worker.

    Args:
        worker: Number of the worker, as PyTorch passes it.
    """
    sys.excepthook = _ignore_broken_pipes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # before any thread
        threading.Thread(target=_exit_on_parents_signal, daemon=True).start()
    end_with_parent(lambda: os._exit(0))


def _exit_on_parents_signal() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent.pid:
        pass
    os._exit(0)


def _ignore_broken_pipes(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print no traceback if the parent ended, or was interrupted, during a transfer.

    PyTorch's thread that hands batches over requests one and continues.
    """
    if not issubclass(kind, OSError | EOFError):
        sys.__excepthook__(kind, error, trace)


def stop_data_loader(iterator: Any) -> None:
    """Stop the workers of a DataLoader's iterator; kill those that do not stop.

    PyTorch waits for each in turn, then sends SIGTERM, which has no effect while a
    decoder does not return. There is no public way.

    Args:
        iterator: Iterator of a DataLoader with workers.
    """
    import torch

    deadline = time.monotonic() + STOP_SECONDS
    try:
        iterator._workers_done_event.set()
        for queue in iterator._index_queues:
            queue.put(None)  # wakes those that wait for work
        for worker in iterator._workers:
            worker.join(max(deadline - time.monotonic(), 0))
    finally:  # also after Ctrl-C
        if any(worker.is_alive() for worker in iterator._workers):
            torch._C._remove_worker_pids(id(iterator))  # or PyTorch raises an error
            iterator._worker_pids_set = False
            for worker in iterator._workers:
                worker.kill()
        iterator._shutdown_workers()
