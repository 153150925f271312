"""Signals become requests, are held back, blocked or forwarded; children end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailshift.workers import (
    Children,
    Preempted,
    exit_on_signals,
    hold_signals,
    stop_on_interrupt,
)


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_stop_on_interrupt__first_requests_second_interrupts() -> None:
    with stop_on_interrupt() as stop:
        assert not stop.is_set
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set
        assert not stop.is_preemption
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_stop_on_interrupt__termination_is_told_apart() -> None:
    with stop_on_interrupt() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set
        assert stop.is_preemption
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the second one ends
        signal.raise_signal(signal.SIGINT)
        assert stop.is_preemption


def test_stop_on_interrupt__in_a_thread_changes_nothing() -> None:
    seen = []

    def work() -> None:
        with stop_on_interrupt() as stop:
            seen.append((stop.is_set, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.default_int_handler)]


def test_exit_on_signals__ends_with_75_or_130() -> None:
    with exit_on_signals():
        with stop_on_interrupt() as stop:  # has the first say
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_preemption
        with pytest.raises(Preempted) as end:
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert end.value.code == 75
    assert end.value.directory is None


def test_exit_on_signals__an_ignored_key_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job
    with exit_on_signals():
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_hold_signals__delivers_each_that_arrived() -> None:
    arrived: list[int] = []
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(n, lambda n, frame: arrived.append(n)) for n in numbers]
    try:
        with hold_signals():
            for number in numbers:
                signal.raise_signal(number)
            assert arrived == []
        assert sorted(arrived) == sorted(numbers)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


CHILD = """
import signal, sys, time
def note(number, frame):
    print("told", number, flush=True)
signal.signal(signal.SIGINT, note)
print("ready", flush=True)
time.sleep(60)
"""


def test_children__forward_signals_and_the_third_kills() -> None:
    children = Children()
    with children.forward_signals():
        child = children.start([sys.executable, "-c", CHILD], dict(os.environ))
        assert children.next_line() == (child, "ready")
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            assert children.next_line() == (child, "told 2")
        signal.raise_signal(signal.SIGINT)
        assert children.next_line() == (child, None)
    assert (child.close(), children.running) == (-signal.SIGKILL, [])


WITH_PARENT = """
from multiprocessing import get_context
import os, sys, time
from tailshift.workers import Children, end_with_parent, save_and_end_with_parent

def work():
    end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    if sys.argv[1] == "command":
        children = Children()
        command = [sys.executable, __file__, "child"]
        children.start(command, dict(os.environ))
        print(children.next_line()[1], flush=True)
    elif sys.argv[1] == "child":
        save_and_end_with_parent()
        print(os.getpid(), flush=True)
    else:
        for _ in range(2):
            get_context(sys.argv[1]).Process(target=work).start()
    time.sleep(60)
"""


@pytest.mark.parametrize(("how", "number"), [("command", 1), ("fork", 2), ("spawn", 2)])
def test_end_with_parent__children_of_a_killed_process_end(
    how: str, number: int, tmp_path: Path
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(WITH_PARENT)
    with subprocess.Popen(
        [sys.executable, script, how], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(number)]
        parent.kill()
    deadline = time.monotonic() + 20
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"
