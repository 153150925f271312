"""Ctrl-C as a request: the step under way is finished, then the run is saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether the user has asked to stop."""

    def __init__(self) -> None:
        self.is_set = False


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C into a request; a second one interrupts at once."""
    request = StopRequest()

    def handle(signum: int, frame: FrameType | None) -> None:
        request.is_set = True
        signal.signal(signal.SIGINT, previous)

    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, previous)
