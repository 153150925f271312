"""The examples, run as a user runs them: without this package where they say so."""

import json
import runpy
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tailshift import Run
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


def test_serve_onnx__over_http(digits_run: Run, model: Path, tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "serve_onnx.py"))
    served = example["Model"](str(model))
    server = example["make_server"](served, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    np.save(tmp_path / "pixels.npy", _pixels(2))
    body = (tmp_path / "pixels.npy").read_bytes()
    target = [5] + [1] * 9
    url = f"http://127.0.0.1:{server.server_port}/?target={json.dumps(target)}"
    try:
        with urllib.request.urlopen(url.replace(" ", ""), data=body) as answer:
            found = json.load(answer)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(url.replace(" ", ""), data=b"no array")
        error.value.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert error.value.code == 400
    expected = _expected(digits_run, _pixels(2), target)
    assert [row["class"] for row in found] == [str(int(c)) for c in expected.argmax(1)]
