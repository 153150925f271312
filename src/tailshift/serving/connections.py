"""Limits on connections: how many there are, and how long they may be silent."""

import asyncio
import logging
import time
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["LogRateLimit", "limited_protocol", "max_connections"]

MAX_CONNECTIONS = 512
HEADER_SECONDS = 10.0
UNREAD_SECONDS = 30.0
SHUTDOWN_SECONDS = 5.0


def max_connections() -> int:
    """Return how many connections fit: 512, or half of the open files allowed."""
    try:
        resource = import_module("resource")
    except ImportError:  # not on Windows
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft < 0 else min(MAX_CONNECTIONS, soft // 2)


def limited_protocol(
    *,
    connections: int,
    header_seconds: float = HEADER_SECONDS,
    unread_seconds: float = UNREAD_SECONDS,
    grace_seconds: float = SHUTDOWN_SECONDS,
) -> type[H11Protocol]:
    """Return uvicorn's protocol with limits that uvicorn itself does not have.

    uvicorn answers 503 above ``limit_concurrency`` but keeps the sockets, and it waits
    without limit for the rest of a header: half-sent requests could take all files.

    Args:
        connections: Maximum number of connections. One more closes the connection that
            has waited longest without a whole request, so a health check gets through.
        header_seconds: Time for a whole header, from the connection or the last
            response on.
        unread_seconds: Time that a client may leave a response unread.
        grace_seconds: Time that requests have to end once the server shuts down.
    """

    class LimitedProtocol(_LimitedProtocol):
        waiting: ClassVar[dict[_LimitedProtocol, None]] = {}
        limits: ClassVar[_Limits] = _Limits(
            connections, header_seconds, unread_seconds, grace_seconds
        )

    return LimitedProtocol


class _Limits(NamedTuple):
    connections: int
    header_seconds: float
    unread_seconds: float
    grace_seconds: float


class _LimitedProtocol(H11Protocol):
    waiting: ClassVar[dict["_LimitedProtocol", None]]
    """Connections without a whole request, the one that waits longest first."""
    limits: ClassVar[_Limits]
    _timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            oldest = next(iter(self.waiting), self)
            oldest._abort()
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            seconds = self.limits.unread_seconds
            self._unread_timer = self.loop.call_later(seconds, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(self.limits.grace_seconds, self._abort)

    def _update(self) -> None:
        """Start the header's timer without a request, and stop it with one."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.waiting.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self not in self.waiting and not self.transport.is_closing():
            self.waiting[self] = None
            self._timer = self.loop.call_later(self.limits.header_seconds, self._abort)

    def _abort(self) -> None:
        self._stop_timers()
        self.transport.abort()

    def _stop_timers(self) -> None:
        self.waiting.pop(self, None)
        for timer in (self._timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._unread_timer = None


class LogRateLimit(logging.Filter):
    """Lets some records per period pass, so that no client fills the log.

    Args:
        count: Maximum number of records per period.
        seconds: Length of a period.
    """

    def __init__(self, count: int = 20, seconds: float = 60.0) -> None:
        super().__init__()
        self._count, self._seconds = count, seconds
        self._start, self._num_seen = time.monotonic(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes; the first of a period tells of the rest."""
        now = time.monotonic()
        if now - self._start >= self._seconds:
            num_dropped = max(0, self._num_seen - self._count)
            self._start, self._num_seen = now, 0
            if num_dropped:
                _append(record, f" ({num_dropped} messages before it were dropped)")
        self._num_seen += 1
        return self._num_seen <= self._count


def _append(record: Any, text: str) -> None:
    record.msg, record.args = record.getMessage() + text, None
