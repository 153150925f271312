"""Serve an exported model with NumPy and ONNX Runtime, and nothing of tailshift.

    tailshift export runs/digits_lt/lade-seed0 -o digits.onnx --target-input
    python serve_onnx.py digits.onnx pixels.npy --target '[1,1,1,1,1,1,1,1,1,5]'
    python serve_onnx.py digits.onnx --port 8000
    curl -g --data-binary @pixels.npy 'localhost:8000/?target=[1,1,1,1,1,1,1,1,1,5]'

Pixels are uint8 of shape (N, channels, H, W), as ``numpy.save`` writes them. With
Pillow installed, image files do as well.
"""

import argparse
import io
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import numpy as np
import onnxruntime


class Model:
    """An ONNX file of ``tailshift export``."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(
            path, providers=["CPUExecutionProvider"]
        )
        entries = self.session.get_modelmeta().custom_metadata_map
        self.facts = {key: json.loads(text) for key, text in entries.items()}
        names = {given.name for given in self.session.get_inputs()}
        self.takes_target = "target_prior" in names

    def probabilities(self, pixels: np.ndarray, target=None) -> np.ndarray:
        """Return (N, C) for pixels (N, channels, H, W) under shares or counts (C,)."""
        inputs = {"images": pixels}
        if target is not None and not self.takes_target:
            raise ValueError("this file has its target prior built in.")
        if self.takes_target:
            target = self.facts["source_prior"] if target is None else target
            inputs["target_prior"] = np.asarray(target, dtype=np.float32)
        [probs] = self.session.run(["probs"], inputs)
        return probs

    def answers(self, pixels: np.ndarray, target=None) -> list[dict]:
        """Return the likeliest class of each image, with its probability."""
        probs = self.probabilities(pixels, target)
        best = probs.argmax(axis=1)
        return [
            {"class": self.facts["class_names"][c], "probability": round(float(p), 6)}
            for c, p in zip(best, probs.max(axis=1), strict=True)
        ]


def read_pixels(path: str, facts: dict) -> np.ndarray:
    """Return pixels from an .npy file or, with Pillow, from an image file."""
    if Path(path).suffix == ".npy":
        return np.load(path)
    from PIL import Image

    image = Image.open(path).convert("L" if facts["in_channels"] == 1 else "RGB")
    scale = facts["resized"] / min(image.size)
    image = image.resize(
        [max(facts["resized"], int(side * scale)) for side in image.size],
        Image.Resampling.BILINEAR,
    )
    left, top = (round((side - facts["image_size"]) / 2) for side in image.size)
    size = facts["image_size"]
    image = image.crop((left, top, left + size, top + size))
    pixels = np.asarray(image).reshape(size, size, facts["in_channels"])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]


def make_server(model: Model, port: int) -> HTTPServer:
    """Return a server that answers a POST of an .npy file with JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                query = parse_qs(urlparse(self.path).query)
                target = json.loads(query["target"][0]) if "target" in query else None
                body = self.rfile.read(int(self.headers["Content-Length"]))
                pixels = np.load(io.BytesIO(body), allow_pickle=False)
                code, answer = 200, model.answers(pixels, target)
            except Exception as error:  # the client's fault, whatever it is
                code, answer = 400, {"error": str(error)}
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    return HTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model of tailshift export.")
    parser.add_argument("model")
    parser.add_argument("pixels", nargs="*")
    parser.add_argument("--target", type=json.loads, help="Shares or counts, as JSON.")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    model = Model(options.model)
    for path in options.pixels:
        pixels = read_pixels(path, model.facts)
        for answer in model.answers(pixels, options.target):
            print(path, answer["class"], f"{answer['probability']:.6f}", sep="\t")
    if options.port is not None:
        make_server(model, options.port).serve_forever()


if __name__ == "__main__":
    main()
