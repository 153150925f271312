"""Serve an exported model with NumPy and ONNX Runtime, and nothing of tailshift.

    tailshift export runs/digits_lt/lade-seed0 -o digits.onnx --target-input
    python serve_onnx.py digits.onnx pixels.npy --target '[1,1,1,1,1,1,1,1,1,5]'
    python serve_onnx.py digits.onnx --port 8000
    curl -g --data-binary @photo.jpg 'localhost:8000/?target=[1,1,1,1,1,1,1,1,1,5]'

Pixels are uint8 of shape (N, channels, H, W), as ``numpy.save`` writes them. With
Pillow installed, PNG, JPEG and other images do as well.
"""

import argparse
import io
import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import numpy as np
import onnxruntime

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
MOST_BYTES = 2**26
MOST_PIXELS = 120_000_000


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
        size, channels = self.facts["image_size"], self.facts["in_channels"]
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (channels, size, size):
            raise ValueError(
                f"pixels must be uint8 of shape (N, {channels}, {size}, {size}), but "
                f"are {pixels.dtype} of shape {pixels.shape}."
            )
        inputs = {"images": pixels}
        if target is not None and not self.takes_target:
            raise ValueError("this file has its target prior built in.")
        if self.takes_target:
            inputs["target_prior"] = self.checked_target(target)
        [probs] = self.session.run(["probs"], inputs)
        return probs

    def checked_target(self, target=None) -> np.ndarray:
        """Return shares or counts (C,); by default those of the training data."""
        source = self.facts["source_prior"]
        try:
            prior = np.asarray(source if target is None else target, dtype=np.float32)
            is_sound = prior.shape == (len(source),) and np.isfinite(prior).all()
            is_sound = is_sound and prior.min() >= 0 and prior.sum() > 0
        except (TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise ValueError(
                f"the target must be {len(source)} shares or counts, >= 0 and not all "
                f"0, but is {str(target)[:80]}."
            )
        return prior

    def answers(self, pixels: np.ndarray, target=None) -> list[dict]:
        """Return the likeliest class of each image, with its probability."""
        probs = self.probabilities(pixels, target)
        best = probs.argmax(axis=1)
        return [
            {"class": self.facts["class_names"][c], "probability": round(float(p), 6)}
            for c, p in zip(best, probs.max(axis=1), strict=True)
        ]


def read_pixels(body: bytes, facts: dict) -> np.ndarray:
    """Return pixels from what an .npy file or, with Pillow, an image file holds."""
    if body.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(body), allow_pickle=False)
    image = open_image(body).convert("L" if facts["in_channels"] == 1 else "RGB")
    size = facts["image_size"]
    if facts.get("fit") == "whole":
        image = resize(image, (size, size))
    else:
        scale = facts["resized"] / min(image.size)
        sides = [max(facts["resized"], int(side * scale)) for side in image.size]
        image = resize(image, sides)
        left, top = (round((side - size) / 2) for side in sides)
        image = image.crop((left, top, left + size, top + size))
    pixels = np.asarray(image).reshape(size, size, facts["in_channels"])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]


def open_image(body: bytes):
    """Return the decoded image: upright, 16 bits scaled to 8, as in training."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(body), formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(
            f"the body must be an .npy file or an image ({', '.join(FORMATS)}), but is "
            "neither."
        ) from None
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(
            f"an image must have at most {MOST_PIXELS:,} pixels, but has {width} × "
            f"{height}."
        )
    image.load()
    with suppress(Exception):  # EXIF data may be damaged in a sound image
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("an image must have 8 or 16 bits, but is in floating point.")
    if image.mode == "I" or image.mode.startswith("I;16"):
        grey = np.asarray(image).clip(0, 65535) // 256
        image = Image.fromarray(grey.astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB") if image.mode != "L" else image


def resize(image, sides):
    """Return the image with another width and height, smoothed as in training."""
    from PIL import Image

    return image.resize(tuple(sides), Image.Resampling.BILINEAR)


def parse_target(text: str):
    """Return shares or counts from JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"the target must be JSON, but is {text[:80]}.") from None


def make_server(model: Model, port: int) -> HTTPServer:
    """Return a server that answers a POST of an .npy or image file with JSON."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds, for a client that sends nothing

        def do_POST(self) -> None:
            try:
                code, answer = 200, self.answer()
            except ValueError as error:  # ours, or of a library that cannot read it
                code, answer = 400, {"error": str(error)}
            except Exception as error:
                code = 400
                answer = {"error": f"the body cannot be read ({error})."}
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def answer(self) -> list[dict]:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MOST_BYTES:
                raise ValueError(
                    f"`Content-Length` must be in 0..{MOST_BYTES}, but is "
                    f"{length[:80] or 'missing'}."
                )
            query = parse_qs(urlparse(self.path).query)
            target = parse_target(query["target"][0]) if "target" in query else None
            pixels = read_pixels(self.rfile.read(int(length)), model.facts)
            return model.answers(pixels, target)

    return HTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model of tailshift export.")
    parser.add_argument("model")
    parser.add_argument("pixels", nargs="*")
    parser.add_argument("--target", help="Shares or counts, as JSON.")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    model = Model(options.model)
    target = parse_target(options.target) if options.target else None
    for path in options.pixels:
        pixels = read_pixels(Path(path).read_bytes(), model.facts)
        for answer in model.answers(pixels, target):
            print(path, answer["class"], f"{answer['probability']:.6f}", sep="\t")
    if options.port is not None:
        make_server(model, options.port).serve_forever()


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
