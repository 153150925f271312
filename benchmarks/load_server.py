"""Load test of the server on loopback: good and hostile clients, and a kill -9.

It trains a model of the digits, serves it with one prior per site, and lets clients
send predictions next to half-sent headers, huge bodies, garbage and clients that leave.
Halfway the server is killed and started again on the same state file. The test fails if
a health check takes more than a second, a response has another site's prior, or more
images are lost than those of the last two seconds.

    python benchmarks/load_server.py --clients 200 --seconds 600
"""

import argparse
import base64
import csv
import http.client
import io
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tailshift import load_recipe, train
from tailshift.estimators import PriorBook
from tailshift.serving.export import export_onnx

NUM_SITES = 8
HOSTILE_SHARE = 0.3
LOST_SECONDS = 2.0  # that a kill may lose, by the docs
MAX_HEALTH_SECONDS = 1.0
COLUMNS = (
    *("clients", "seconds", "requests", "hostile", "per_second", "p50_ms", "p99_ms"),
    *("health_p99_ms", "health_max_ms", "peak_mb", "errors", "lost_images"),
    *("cross_site", "cores", "load_average"),
)


@dataclass
class Record:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    images: dict[str, list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    num_hostile: int = 0
    num_cross: int = 0
    lock: Any = field(default_factory=threading.Lock)


class Server:
    """The server in a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port, self.peak = port, 0
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        files = {"--book": "book.json", "--held-out": "val.safetensors"}
        options = [str(x) for k, v in files.items() for x in (k, self._folder / v)]
        state = ["--state", str(self._folder / "sites.sqlite"), "--adapt", "never"]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tailshift", "serve"),
                *(str(self._folder / "model.onnx"), "--port", str(self.port)),
                *options,
                *state,
            ],
            stdout=subprocess.PIPE,
            stderr=(self._folder / "server.log").open("ab"),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the server did not start"

    def end(self, *, by_kill: bool) -> None:
        """End it."""
        assert self.process is not None
        self.note_memory()
        (self.process.kill if by_kill else self.process.terminate)()
        self.process.communicate(timeout=60)

    def note_memory(self) -> None:
        """Note the highest memory so far, in MB."""
        assert self.process is not None
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        [line] = [x for x in status.splitlines() if x.startswith("VmHWM")]
        self.peak = max(self.peak, int(line.split()[1]) // 1024)


def _ask(port: int, path: str, body: bytes = b"") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request("POST" if body else "GET", path, body or None, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def _hostile(port: int, rng: random.Random, images: list[str]) -> None:
    """Send one of the requests that once brought the server down, and leave."""
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
    huge = b'{"images":["aaaa"],"mix":[' + b",".join([b"-1"] * 300_000) + b"]}"
    many = json.dumps({"images": images * 8}).encode()
    contents = {
        "half": head,
        "garbage": rng.randbytes(200),
        "huge": head
        + b"application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(huge), huge),
        "leaves": head
        + b"application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(many), many),
    }
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(contents[rng.choice(list(contents))])
        time.sleep(rng.random())


def _client(
    server: Server, seed: int, priors: Any, images: list[str], record: Record, end: Any
) -> None:
    rng = random.Random(seed)
    while not end.is_set():
        try:
            if rng.random() < HOSTILE_SHARE:
                _hostile(server.port, rng, images)
                with record.lock:
                    record.num_hostile += 1
                continue
            _predict(server.port, rng, priors, images, record)
        except (OSError, http.client.HTTPException, ValueError) as error:
            with record.lock:
                record.statuses[type(error).__name__] += 1
        time.sleep(rng.random() * 0.5)


def _predict(
    port: int, rng: random.Random, priors: Any, images: list[str], record: Record
) -> None:
    site, chosen = rng.choice(list(priors)), rng.choices(images, k=rng.randint(1, 4))
    began = time.monotonic()
    body = json.dumps({"images": chosen, "site": site}).encode()
    status, content = _ask(port, "/predict", body)
    now = time.monotonic()
    with record.lock:
        record.statuses[str(status)] += 1
        record.seconds.append(now - began)
        if status == 200:
            record.images[site].append((now, len(chosen)))
            is_own = np.allclose(content["mix"]["shares"], priors[site])
            record.num_cross += not is_own or content["site"]["site"] != site


def _watch(server: Server, record: Record, end: Any, is_up: Any) -> None:
    while not end.is_set():
        if is_up.is_set():
            began = time.monotonic()
            try:
                _ask(server.port, "/healthz")
            except OSError:
                record.statuses["health failed"] += is_up.is_set()
            else:
                record.health.append(time.monotonic() - began)
            server.note_memory()
        time.sleep(0.25)


def _prepare(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Write model, held-out logits and site priors; return priors and images."""
    settings = ["method.name=softmax", "train.epochs=20"]
    run = train(load_recipe("digits_lt", settings), output=folder / "run")
    export_onnx(run, folder / "model.onnx")
    run.predictions("val").save(folder / "val.safetensors")
    book = PriorBook(run.class_names, run.source_prior)
    for k in range(NUM_SITES):
        name, counts = f"site {k}", np.ones(10, int)
        counts[k] = 91
        book.add(name, counts=counts.tolist())
    # Not before all are added: a site's prior depends on the other sites.
    priors = {name: np.asarray(book.prior(name)) for name in book.sites}
    book.save(folder / "book.json")
    rng, images = np.random.default_rng(0), []
    for _ in range(64):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(file, "PNG")
        images.append(base64.b64encode(file.getvalue()).decode())
    return priors, images


def _lost(port: int, record: Record, killed: float) -> int:
    """Return how many images are missing that came before the last seconds."""
    lost = 0
    for site, batches in record.images.items():
        due = sum(count for at, count in batches if at < killed - LOST_SECONDS)
        status, content = _ask(port, f"/site?site={site.replace(' ', '%20')}")
        assert status == 200
        lost += max(0, due - content["summary"]["images_seen"])
    return lost


def main() -> None:
    """Run the test, add a row to the results, and fail if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        row = _run(Path(name), port, options.clients, options.seconds)
    if options.results is not None:
        is_new = not options.results.exists()
        with options.results.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
    print(json.dumps(row, indent=1))
    assert row["cross_site"] == 0, "a response had another site's prior"
    assert row["lost_images"] == 0, "images before the last two seconds were lost"
    assert row["health_max_ms"] <= 1000 * MAX_HEALTH_SECONDS, "a health check was slow"


def _run(folder: Path, port: int, num_clients: int, seconds: float) -> dict[str, Any]:
    priors, images = _prepare(folder)
    server, record = Server(folder, port), Record()
    end, is_up = threading.Event(), threading.Event()
    server.start()
    is_up.set()
    threads = [
        threading.Thread(target=_client, args=(server, i, priors, images, record, end))
        for i in range(num_clients)
    ]
    threads.append(threading.Thread(target=_watch, args=(server, record, end, is_up)))
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    is_up.clear()
    killed = time.monotonic()
    server.end(by_kill=True)
    server.start()
    lost = _lost(port, record, killed)
    is_up.set()
    time.sleep(seconds / 2)
    end.set()
    for thread in threads:
        thread.join()
    server.end(by_kill=False)
    latencies, health = (
        1000 * np.array(part) for part in (record.seconds, record.health)
    )
    print("outcomes:", dict(record.statuses))
    closed = ("ConnectionRefusedError", "ConnectionResetError", "RemoteDisconnected")
    refused = ("200", "429", "503", *closed)
    errors = sum(n for kind, n in record.statuses.items() if kind not in refused)
    figures = {
        "clients": num_clients,
        "seconds": seconds,
        "requests": len(latencies),
        "hostile": record.num_hostile,
        "per_second": len(latencies) / seconds,
        "p50_ms": np.median(latencies),
        "p99_ms": np.quantile(latencies, 0.99),
        "health_p99_ms": np.quantile(health, 0.99),
        "health_max_ms": health.max(),
        "peak_mb": server.peak,
        "errors": errors,
        "lost_images": lost,
        "cross_site": record.num_cross,
        "cores": os.cpu_count() or 1,
        "load_average": os.getloadavg()[0],
    }
    return {key: round(float(value), 1) for key, value in figures.items()}


if __name__ == "__main__":
    main()
