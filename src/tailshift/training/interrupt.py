"""Ctrl-C and pre-emption as requests: the step under way is finished and saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tailshift.storage import end_if_importing, ignore_keys_at_exit

PREEMPTED = 75
"""Exit code after SIGTERM ("temporary failure"): the same command may be run again."""


class Preempted(SystemExit):
    """Training was told to end (SIGTERM); what was done is saved, if it had begun.

    Args:
        directory: The run that can be resumed; None if none had begun.
    """

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(PREEMPTED)
        self.directory = directory


class StopRequest:
    """Whether the user or a scheduler has asked to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_preemption = False
        """Whether it was SIGTERM: time is short, so that nothing is evaluated."""


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second one acts at once."""
    request = StopRequest()

    def handle(signum: int, frame: FrameType | None) -> None:
        request.is_set = True
        request.is_preemption |= signum == signal.SIGTERM
        signal.signal(signum, previous[signum])
        ignore_keys_at_exit()

    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may set handlers
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {int(number): signal.getsignal(number) for number in numbers}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """End with exit code 75 on SIGTERM, also before training begins and after it."""

    def handle(signum: int, frame: FrameType | None) -> None:
        end_if_importing(PREEMPTED, frame)
        raise Preempted

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
