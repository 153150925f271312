"""Limits on connections: half-sent requests, unread responses and the log."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("uvicorn")

import uvicorn

from tailshift.serving import server
from tailshift.serving.connections import LogRateLimit, limited_protocol

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answer `/` with 2 bytes and any other path with 20 MB."""
    if scope["type"] != "http":
        return
    content = b"ok" if scope["path"] == "/" else b"x" * 20_000_000
    headers = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


@contextmanager
def _up(config: Any) -> Iterator[tuple[str, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        running.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def _config(**limits: Any) -> Any:
    protocol = limited_protocol(**({"connections": 10} | limits))
    return uvicorn.Config(_app, http=protocol, log_level="critical", lifespan="off")


def _answer(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(REQUEST + b"Connection: close\r\n\r\n")
        return b"".join(iter(lambda: client.recv(1000), b""))


def _is_closed(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        while client.recv(2**20):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("start", [b"", b"GET / HT", REQUEST])
def test_protocol__closes_a_connection_without_a_whole_header(start: bytes) -> None:
    with (
        _up(_config(header_seconds=0.5)) as address,
        socket.create_connection(address) as client,
    ):
        client.sendall(start)
        time.sleep(0.3)
        client.sendall(start and b"X: 1\r\n")  # a slow sender gets no more time
        assert _is_closed(client, 10)


def test_protocol__limits_the_header_of_a_second_request_too() -> None:
    with (
        _up(_config(header_seconds=0.5)) as address,
        socket.create_connection(address) as client,
    ):
        client.sendall(REQUEST + b"\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(REQUEST)
        assert _is_closed(client, 10)


def test_protocol__half_sent_requests_keep_nobody_out() -> None:
    with _up(_config(connections=10)) as address:
        clients = [socket.create_connection(address) for _ in range(60)]
        for client in clients:
            client.sendall(REQUEST)
        for _ in range(5):
            assert _answer(address).endswith(b"ok")
        assert sum(not _is_closed(client, 0.05) for client in clients) <= 10
        for client in clients:
            client.close()


def test_protocol__closes_a_connection_that_does_not_read() -> None:
    with (
        _up(_config(unread_seconds=0.5)) as address,
        socket.create_connection(address) as client,
    ):
        client.sendall(REQUEST.replace(b"/", b"/large", 1) + b"\r\n")
        time.sleep(2)
        client.settimeout(10)
        received = 0
        with suppress(ConnectionError):
            while part := client.recv(2**20):
                received += len(part)
        assert received < 20_000_000


def test_protocol__ends_although_a_client_does_not_read() -> None:
    with _up(_config(grace_seconds=0.5)) as address:
        client = socket.create_connection(address)
        client.sendall((REQUEST.replace(b"/", b"/large", 1) + b"\r\n") * 3)
        time.sleep(0.5)
        began = time.monotonic()
    assert time.monotonic() - began < 15  # and not once the client has read
    client.close()


def test_config__has_the_limits() -> None:
    config = server.server_config(_app)  # type: ignore[arg-type]
    assert config.http.limits.connections <= 512
    assert config.timeout_graceful_shutdown == 10


def test_log__is_not_filled_by_strangers(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.Logger("strangers")
    logger.addHandler(caplog.handler)
    logger.addFilter(LogRateLimit(count=3, seconds=0.5))
    for i in range(100):
        logger.warning("request %d", i)
    assert caplog.messages == ["request 0", "request 1", "request 2"]
    time.sleep(0.6)
    logger.warning("request %d", 100)
    assert caplog.messages[-1] == "request 100 (97 messages before it were dropped)"
