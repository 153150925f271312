"""The server as a process of its own: killed under load, it goes on where it was."""

import json
import signal
import sqlite3
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tailshift import Run

for package in ("fastapi", "onnxruntime", "python_multipart", "uvicorn"):
    pytest.importorskip(package)

Arguments = tuple[object, ...]


def _ask(address: str, path: str, content: Any = None) -> Any:
    request = urllib.request.Request(f"{address}{path}")
    if content is not None:
        request.data = json.dumps(content).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def _wait_for(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.2)


def test_serve__killed_under_load_goes_on(
    trained: Run,
    model_file: Path,
    body: Any,
    rows_of: Any,
    start: Any,
    tmp_path: Path,
) -> None:
    state, sent, stop = tmp_path / "sites.sqlite", [0], threading.Event()
    trained.predictions("val").save(tmp_path / "val.safetensors")
    command: Arguments = (
        model_file,
        *("--port", 0, "--state", state),
        *("--held-out", tmp_path / "val.safetensors"),
    )
    # Distinct images, since copies are no evidence.
    content = body(rows_of(range(1, 11), 60), range(60), site="harbour")

    def load(address: str) -> None:
        while not stop.is_set():
            try:
                _ask(address, "/predict", content)
            except OSError:
                return
            sent[0] += 60
            time.sleep(0.05)

    def harbour(address: str) -> Any:
        return _ask(address, "/site?site=harbour")

    with start(*command) as (process, address):
        clients = [threading.Thread(target=load, args=(address,)) for _ in range(3)]
        for client in clients:
            client.start()
        _wait_for(lambda: sent[0] and harbour(address)["history"])
        seen_before = harbour(address)["summary"]["images_seen"]
        time.sleep(2.5)  # more than a flush
        process.send_signal(signal.SIGKILL)
        process.wait()
        stop.set()
        for client in clients:
            client.join()
    file = sqlite3.connect(state)
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()
    with start(*command) as (process, address):
        site = harbour(address)
        assert seen_before <= site["summary"]["images_seen"] <= sent[0] + 3 * 60
        assert site["estimate"] is not None
        assert site["history"]
        _ask(address, "/predict", content)
        after = harbour(address)["summary"]["images_seen"]
        assert after == site["summary"]["images_seen"] + 60
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (75, -signal.SIGTERM)
    file = sqlite3.connect(state)
    [(kept,)] = file.execute("SELECT num_seen FROM sites").fetchall()
    file.close()
    assert kept == after  # nothing is lost at an orderly end
