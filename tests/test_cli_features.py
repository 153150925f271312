"""Features and the runs on them, from the command line."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tailshift as ts
from tailshift.models import TimmBackbone

Command = Callable[..., Any]
COUNTS = {"cat": 14, "dog": 10, "owl": 6}
TINY = "timm:test_efficientnet"


@pytest.fixture
def photos(tailshift: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write photos and weights of a tiny network; the cache is a folder beside them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for c, (name, count) in enumerate(COUNTS.items()):
        Path("photos", name).mkdir(parents=True)
        for i in range(count):
            pixels = generator.normal(60 + 60 * c, 40, (30, 24 + i)).clip(0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(f"photos/{name}/{i}.png")
    torch.manual_seed(0)
    torch.save(TimmBackbone(TINY.removeprefix("timm:")).model.state_dict(), "tiny.pth")
    return "folder:photos"


MAKE = ("--model", TINY, "--weights", "tiny.pth", "--image-size", "32")


@pytest.mark.filterwarnings("always")  # few photos are few to estimate a mix from
def test_features__bank_serves_every_command(tailshift: Command, photos: str) -> None:
    made = tailshift("features", photos, *MAKE, "-o", "bank")
    assert made == (
        0,
        "21 train, 3 val, 6 test samples of 256 features: train --features bank\n"
        "bank\n",
        "features: 30 images go through the network once\n",
    )
    result = tailshift("train", "--features", "bank", "--output", "run")
    assert (result.code, result.complaints) == (0, [])
    run = ts.load_run("run")
    assert (run.config.method_name, run.class_names) == ("lade", tuple(COUNTS))
    for command in (
        ("train", "--features", "bank", "--output", "run", "--resume"),
        ("evaluate", "run", "--target", "uniform"),
        ("report", "run", "-o", "out"),
        ("export", "run", "-o", "run.onnx"),
        ("predict", "run", "photos", "--adapt", "-o", "answers.csv"),
    ):
        assert tailshift(*command).code == 0, command
    with Path("answers.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(COUNTS.values())
    hits = [row["predicted"] == Path(row["path"]).parent.name for row in rows]
    assert np.mean(hits) > 0.8
    _check_onnx(run, Path("photos/dog/3.png"))


def _check_onnx(run: ts.Run, image: Path) -> None:
    """Serve an image from the ONNX file alone, as its metadata say."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession("run.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["fit"]) == "crop"
    size, resized = (json.loads(facts[key]) for key in ("image_size", "resized"))
    picture = Image.open(image).convert("RGB")
    scale = resized / min(picture.size)
    width, height = (int(side * scale) for side in picture.size)
    picture = picture.resize((width, height), Image.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    picture = picture.crop((left, top, left + size, top + size))
    pixels = np.asarray(picture).transpose(2, 0, 1)[None]
    [probs] = session.run(["probs"], {"images": pixels})
    [row] = ts.predict(run, image).rows
    best = int(probs[0].argmax())
    assert json.loads(facts["class_names"])[best] == row["predicted"]
    assert abs(probs[0, best] - float(row["probability"])) < 1e-3


def test_train__network_makes_the_bank_once(
    tailshift: Command, photos: str, tmp_path: Path
) -> None:
    options = ("--set", "model.pretrained=false", "--set", "model.weights=tiny.pth")
    command = ("train", "--data", photos, "--features", TINY, *options)
    result = tailshift(*command, "--seeds", "0,1", "--method", "balanced_softmax")
    assert (result.code, result.complaints) == (
        0,
        ["features: 30 images go through the network once"],  # for both
    )
    run = ts.load_run("runs/own_images/balanced_softmax-seed1")
    assert run.config.model.image_size == 128
    assert len(list((tmp_path / "cache/tailshift/features").iterdir())) == 1
    assert tailshift("predict", run.directory, "photos/cat").code == 0


def test_features__of_numpy_files(tailshift: Command) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 5)), ["a", "b", "c"] * 10
    np.savez("all.npz", features=x, labels=y)
    assert tailshift("features", "npz:all.npz", "-o", "bank") == (
        0,
        "24 train, 6 test samples of 5 features: train --features bank\nbank\n",
        "",
    )
    trained = tailshift("train", "--features", "bank", "--output", "run")
    assert trained.code == 0
    assert "to the uniform test set (6 samples)" in trained.out.splitlines()[0]
    assert "6 test samples, re-targeted to " in trained.out
    np.save("x.npy", x)
    np.save("y.npy", y)
    again = tailshift("features", "npy:x.npy", "--labels", "y.npy", "-o", "other")
    assert again.code == 0
    one, other = (ts.FeatureCache.load(name).facts for name in ("bank", "other"))
    assert one == other


def test_report__of_features_made_elsewhere_has_samples(tailshift: Command) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 5)), np.arange(30) % 3
    ts.FeatureCache.from_arrays("bank", train=(x + y[:, None], y))
    tailshift("train", "--features", "bank", "--output", "run")
    assert tailshift("report", "run", "-o", "out").code == 0
    page = Path("out/report.html").read_text(encoding="utf-8")
    [data] = re.findall(r'id="explorer-data">(.*?)</script>', page)
    assert json.loads(data)["unit"] == "samples"
    assert "<dt>Test samples</dt><dd>6 " in page
    assert "images" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("train", "--features", "lite1"),
            "features come from a feature cache or from a network, lite0 or timm:NAME, "
            "but 'lite1' is neither.",
        ),
        (
            ("train", "--features", "photos"),
            "photos is not a feature cache: it has no bank.json. `tailshift features` "
            "makes one, and finishes one that was interrupted.",
        ),
        (
            ("train", "--data", "folder:photos", "--features", "photos"),
            "`--features` photos is a bank, which has its own data: drop --data, or "
            "name a network.",
        ),
        (
            ("train", "--data", "folder:photos", "--features", TINY, "--method", "bbn"),
            "`model.frozen` must be false, since bbn trains branches of the network, "
            "but is true.",
        ),
        (
            ("features", "npz:none.npz", "-o", "bank"),
            "there is no file `none.npz`.",
        ),
        (
            ("features", "folder:none", "-o", "bank"),
            "there is no folder `none`.",
        ),
    ],
)
def test_features__bad_arguments(
    tailshift: Command, photos: str, arguments: tuple[str, ...], sentence: str
) -> None:
    assert tailshift(*arguments) == (2, "", f"error: {sentence}\n")
    assert not Path("bank").exists()
