"""The examples, run as a user runs them: without this package where they say so."""

import io
import json
import runpy
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tailshift import Run, post_compensate
from tailshift.serving import image_logits
from tailshift.serving.export import export_onnx

EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = """
import runpy, sys
sys.path[:0] = [sys.argv[1]]
for name in ("tailshift", "torch", "onnx", "sklearn"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported")
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def model(digits_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    export_onnx(digits_run, path)
    return path


def _pixels(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)


def _expected(run: Run, pixels: np.ndarray, target: list[float]) -> torch.Tensor:
    mean, std = run.facts.mean[0], run.facts.std[0]
    images = (torch.from_numpy(pixels).float() / 255 - mean) / std
    prior = torch.tensor(target, dtype=torch.float64)
    with torch.no_grad():
        return run.retarget(prior / prior.sum())(images).softmax(-1)


def _environment(folder: Path) -> Path:
    """Make a folder of packages with NumPy, ONNX Runtime and Pillow alone."""
    folder.mkdir()
    for name in ("numpy", "onnxruntime", "PIL"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        (folder / name).symlink_to(package)
    for libraries in ("numpy.libs", "pillow.libs"):  # where wheels keep what they load
        if (package.parent / libraries).is_dir():
            (folder / libraries).symlink_to(package.parent / libraries)
    return folder


def test_serve_onnx__without_this_package(
    digits_run: Run, model: Path, tmp_path: Path
) -> None:
    """In an interpreter that sees the standard library and three packages."""
    pixels, target = _pixels(3), [1.0] * 9 + [5.0]
    np.save(tmp_path / "pixels.npy", pixels)
    Image.fromarray(pixels[0, 0]).save(tmp_path / "digit.png")
    packages = _environment(tmp_path / "packages")
    command = [sys.executable, "-I", "-S", "-c", ALONE, packages]
    command += [EXAMPLES / "serve_onnx.py", model, "pixels.npy", "digit.png"]
    command += ["--target", json.dumps(target)]
    result = subprocess.run(
        list(map(str, command)), cwd=tmp_path, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    expected = _expected(digits_run, pixels, target)
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == ["pixels.npy"] * 3 + ["digit.png"]
    assert rows[3][1:] == rows[0][1:]
    assert [row[1] for row in rows[:3]] == [str(int(c)) for c in expected.argmax(1)]
    given = torch.tensor([float(row[2]) for row in rows[:3]])
    torch.testing.assert_close(given, expected.amax(1), atol=1e-4, rtol=0)


@pytest.fixture
def ask(model: Path) -> Iterator[Callable[..., tuple[int, Any]]]:
    """Serve the model, and return what posts a body and a target to it."""
    example = runpy.run_path(str(EXAMPLES / "serve_onnx.py"))
    server = example["make_server"](example["Model"](str(model)), 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def post(body: bytes, target: str = "") -> tuple[int, Any]:
        url = f"http://127.0.0.1:{server.server_port}/"
        url += f"?target={quote(target)}" if target else ""
        try:
            with urllib.request.urlopen(url, data=body) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    yield post
    server.shutdown()
    server.server_close()
    thread.join()


def _encoded(image: Image.Image, suffix: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, suffix, **settings)
    return file.getvalue()


def test_serve_onnx__over_http(ask: Callable[..., Any], digits_run: Run) -> None:
    file, target = io.BytesIO(), [5] + [1] * 9
    np.save(file, _pixels(2))
    code, found = ask(file.getvalue(), json.dumps(target))
    assert code == 200
    expected = _expected(digits_run, _pixels(2), target)
    assert [row["class"] for row in found] == [str(int(c)) for c in expected.argmax(1)]


def test_serve_onnx__images_as_predict_reads_them(
    ask: Callable[..., Any], digits_run: Run, tmp_path: Path
) -> None:
    """PNG, JPEG, 16 bits, sideways, of another shape: the same answer by two ways."""
    grey = Image.fromarray(_pixels(1)[0, 0]).resize((20, 12))
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    bodies = {
        "a.png": _encoded(grey, "PNG"),
        "b.jpg": _encoded(grey, "JPEG"),
        "c.png": _encoded(deep, "PNG"),
        "d.jpg": _encoded(grey, "JPEG", exif=exif),
    }
    uniform = torch.full((10,), 0.1)
    for name, body in bodies.items():
        (tmp_path / name).write_bytes(body)
        logits = image_logits(digits_run, [str(tmp_path / name)]).logits
        probs = post_compensate(
            logits.double(), logit_prior=uniform, target_prior=uniform
        ).softmax(1)
        code, [answer] = ask(body, json.dumps([1] * 10))
        assert code == 200
        assert answer["class"] == str(int(probs.argmax()))
        assert answer["probability"] == pytest.approx(float(probs.max()), abs=2e-3)
    assert ask(bodies["a.png"]) == ask(bodies["c.png"])
    assert ask(bodies["b.jpg"]) != ask(bodies["d.jpg"])


def test_serve_onnx__damaged_exif_data_do_not_matter(ask: Callable[..., Any]) -> None:
    grey, info = Image.fromarray(_pixels(1)[0, 0]), PngInfo()
    info.add_text("Raw profile type exif", "\nexif\n10\nno digits")
    damaged = _encoded(grey, "PNG", pnginfo=info)
    assert ask(damaged) == ask(_encoded(grey, "PNG"))
    assert ask(damaged)[0] == 200


def test_serve_onnx__faults_are_sentences(ask: Callable[..., Any]) -> None:
    array, good = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros((2, 3)))
    np.save(good, _pixels(1))
    neither = (
        "the body must be an .npy file or an image (JPEG, PNG, WEBP, BMP, TIFF, GIF, "
        "PPM), but is neither."
    )
    rule = "the target must be 10 shares or counts, >= 0 and not all 0, but is "
    assert ask(b"no array") == (400, {"error": neither})
    assert ask(b"%!PS-Adobe-3.0 EPSF-3.0\n%%EOF\n") == (400, {"error": neither})
    assert ask(array.getvalue()) == (
        400,
        {
            "error": "pixels must be uint8 of shape (N, 1, 8, 8), but are float64 of "
            "shape (2, 3)."
        },
    )
    for target, shown in (("[1, 2]", "[1, 2]"), ('{"a": 1}', "{'a': 1}")):
        assert ask(good.getvalue(), target) == (400, {"error": f"{rule}{shown}."})
    assert ask(good.getvalue(), "[0]") == (400, {"error": f"{rule}[0]."})
    assert ask(good.getvalue(), "even") == (
        400,
        {"error": "the target must be JSON, but is even."},
    )
