"""A model that has learnt something, as a service; digits as encoded images."""

import base64
import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tailshift import Run, load_recipe, train
from tailshift.data import DATASETS

Encode = Callable[..., bytes]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of softmax on the digits, of twenty epochs; read only."""
    config = load_recipe("digits_lt", ["method.name=softmax", "train.epochs=20"])
    return train(config, output=tmp_path_factory.mktemp("served") / "run")


@pytest.fixture(scope="session")
def model_file(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return that run as an ONNX file with the class distribution as an input."""
    pytest.importorskip("onnxscript")
    from tailshift.serving.export import export_onnx

    path = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    export_onnx(trained, path)
    return path


@pytest.fixture(scope="session")
def encode() -> Encode:
    """Return test digit i, of class i // 50, as a PNG file, with some bits changed."""
    images = DATASETS.get("digits_lt")().load(root=None, seed=0).test.images

    def png(i: int, change: int = 0) -> bytes:
        file, pixels = io.BytesIO(), images[i, 0].numpy().copy()
        bits = np.array([change >> k & 1 for k in range(10)], np.uint8)
        pixels.ravel()[:10] ^= bits  # by one grey level
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()

    return png


@pytest.fixture(scope="session")
def body(encode: Encode) -> Callable[..., dict[str, Any]]:
    """Make the JSON of a request for test digits."""

    def make(rows: Any, changes: Any = None, **fields: Any) -> dict[str, Any]:
        changes = np.zeros(len(rows), int) if changes is None else changes
        files = [encode(int(i), int(k)) for i, k in zip(rows, changes, strict=True)]
        images = [base64.b64encode(file).decode() for file in files]
        return {"images": images, **fields}

    return make


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., Any]:
    """Draw test digits of classes in given shares."""

    def draw(shares: Any, size: int, seed: int = 0) -> Any:
        p = np.repeat(np.asarray(shares, dtype=float), 50)
        return np.random.default_rng(seed).choice(500, size, p=p / p.sum())

    return draw


@pytest.fixture
def connect(
    trained: Run, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Open a client of a new server; estimates are made only when a test asks."""
    for package in ("fastapi", "onnxruntime", "python_multipart", "uvicorn"):
        pytest.importorskip(package)
    from starlette.testclient import TestClient

    from tailshift.serving import server

    monkeypatch.setattr("tailshift.serving.service.REFRESH_SECONDS", 3600)
    clients = []

    def make(token: str = "", **settings: Any) -> Any:
        settings = {"held_out": trained.predictions("val"), "threads": 1} | settings
        service = server.open_service(model_file, **settings)
        app = server.build_app(service, token=token)
        client = TestClient(app, base_url="http://127.0.0.1")
        client.__enter__()
        clients.append(client)
        client.service = service  # type: ignore[attr-defined]
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def send_images(body: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Send test digits to a site in requests of 50, and return the last response.

    Digits that are drawn twice differ by a grey level, as two photos of one thing do.
    """

    def send(client: Any, rows: Any, site: str) -> dict[str, Any]:
        for start in range(0, len(rows), 50):
            part = rows[start : start + 50]
            changes = range(start, start + len(part))
            content = body(part, changes, site=site)
            answer = client.post("/predict", json=content)
            assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    return send


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def serving() -> Callable[[Any], Any]:
    """Serve an app on a free port of this machine while a block lasts."""
    return _serving


@contextmanager
def _started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command and yield it with its address."""
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a full pipe would stop it)
    process = subprocess.Popen(
        [sys.executable, "-m", "tailshift", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            log.seek(0)
            raise AssertionError(log.read())
        yield process, address.rstrip("/")
    finally:
        process.kill()
        process.communicate()
        log.close()


@pytest.fixture(scope="session")
def start() -> Callable[..., Any]:
    """Run `tailshift serve` in a process of its own while a block lasts."""
    return _started
