"""Compare images per second of the server with ONNX Runtime's own on the same batches.

A process of its own sends JPEGs of 500×375 pixels over HTTP on this machine, eight to
a request, eight requests at a time. The server decodes, prepares, batches and answers
them; beside it ONNX Runtime alone runs the same model on batches of the same sizes,
which are decoded already, as often as they came. Both use one thread for the model.
By processor time, which other work on the machine does not change; what the clock says
is printed beside it.

    python benchmarks/bench_server.py

One line a trial, with the 99th percentile of a request's time; the exit code is 1 if
the median ratio is below 0.7.
"""

import argparse
import io
import json
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import uvicorn
from PIL import Image

from tailshift.serving.inference import OnnxModel
from tailshift.serving.routes import build_app
from tailshift.serving.server import open_service
from tailshift.serving.service import Service

AIM, IMAGES, CLIENTS, SIZE = 0.7, 8, 8, 224


class Network(torch.nn.Module):
    """A ResNet-18 behind the inputs and outputs of an exported file."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet18

        self.model = resnet18(num_classes=100)

    def forward(self, images, target_prior):
        """Return logits and probabilities; the prior is an input without effect."""
        f = self.model(images.float() / 255) + target_prior.log() * 0
        return f, f.softmax(dim=1)


def export(path: Path) -> None:
    """Write the network as a file of ``tailshift export``, untrained."""
    import onnx

    torch.manual_seed(0)
    example = (torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8), torch.ones(100))
    program = torch.onnx.export(
        Network().eval(),
        example,
        input_names=["images", "target_prior"],
        output_names=["logits", "probs"],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)}, None),
        opset_version=18,
        dynamo=True,
        verbose=False,
    )
    model = program.model_proto
    share = [0.01] * 100
    entries = {
        "class_names": [f"class {c}" for c in range(100)],
        "source_prior": share,
        "logit_prior": share,
        "target_prior": None,
        "image_size": SIZE,
        "in_channels": 3,
        "resized": 256,
        "fit": "margin",
    }
    onnx.helper.set_model_props(model, {k: json.dumps(v) for k, v in entries.items()})
    path.write_bytes(model.SerializeToString())


def photo(seed: int) -> bytes:
    """Return a smooth picture as a JPEG."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    file = io.BytesIO()
    small.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def form(images: list[bytes]) -> tuple[bytes, str]:
    """Return a form of files, and its content type."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="images"; '
        f'filename="a.jpg"\r\n\r\n'.encode()
        + image
        + b"\r\n"
        for image in images
    ]
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="site"\r\n\r\n'
        f"here\r\n--{boundary}--\r\n".encode()
    )
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def send(address: str, count: int, results) -> None:
    """Send requests, and put how long all and each of them took."""
    body, kind = form([photo(i) for i in range(IMAGES)])

    def ask(_: int) -> float:
        start = time.perf_counter()
        headers = {"Content-Type": kind}
        request = urllib.request.Request(f"{address}/predict", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
        return time.perf_counter() - start

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(ask, range(CLIENTS)))  # warm
        start = time.perf_counter()
        times = list(pool.map(ask, range(count)))
        results.put((time.perf_counter() - start, times))


def trial(service: Service, session, address: str, count: int) -> tuple[float, ...]:
    """Return images per second of both, the ratio by processor time, and the p99."""
    results = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(
        target=send, args=(address, count, results)
    )
    service.batcher.sizes.clear()
    start = time.process_time()
    process.start()
    seconds, times = results.get(timeout=600)
    process.join()
    used = time.process_time() - start
    num_images = sum(service.batcher.sizes.elements())
    own, own_used = alone(service, session)
    return count * IMAGES / seconds, own, num_images * own_used / used, p99(times)


def p99(times: list[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return 1000 * float(np.quantile(times, 0.99))


def alone(service: Service, session) -> tuple[float, float]:
    """Return images per second, and processor time an image, of ONNX Runtime alone."""
    sizes = list(service.batcher.sizes.elements())
    pixels = np.zeros((max(sizes), 3, SIZE, SIZE), np.uint8)
    prior = np.ones(100, np.float32)
    start, used = time.perf_counter(), time.process_time()
    for size in sizes:
        session.run(["logits"], {"images": pixels[:size], "target_prior": prior})
    seconds, used = time.perf_counter() - start, time.process_time() - used
    return sum(sizes) / seconds, used / sum(sizes)


def main() -> None:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--requests", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"onnxruntime {onnxruntime.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(path)
        service = open_service(path, threads=1)
        session = OnnxModel(path, threads=1)._session
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(build_app(service), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        ratios = []
        for _ in range(options.trials):
            served, own, ratio, slowest = trial(
                service, session, address, options.requests
            )
            ratios.append(ratio)
            print(
                f"ratio {ratio:.2f} by processor time; by the clock server "
                f"{served:.1f} images/s, ONNX Runtime alone {own:.1f}, p99 of a "
                f"request {slowest:.0f} ms",
                flush=True,
            )
        server.should_exit = True
        thread.join()
    median = statistics.median(ratios)
    print(f"median ratio {median:.2f} (aim {AIM})")
    sys.exit(median < AIM)


if __name__ == "__main__":
    main()
