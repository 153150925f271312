"""A small configuration, a finished run of it, images and a command line to share."""

import csv
import hashlib
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from tailshift import Run, RunConfig, load_recipe, train
from tailshift.cli import main
from tailshift.data.image_loader import FileLoader
from tailshift.models import (
    Classifier,
    LinearHead,
    build_backbone,
    pretrained,
    timm_backbone,
)

TinyConfig = Callable[..., RunConfig]


def _tiny_config(*overrides: str) -> RunConfig:
    return load_recipe("digits_lt", ["train.epochs=2", *overrides])


@pytest.fixture
def tiny_config() -> TinyConfig:
    """Make the configuration of a run of two epochs, five steps each."""
    return _tiny_config


@pytest.fixture
def linear_model() -> Callable[..., Classifier]:
    """Make a classifier of a named backbone and the affine head."""

    def build(name: str, num_classes: int, **settings: Any) -> Classifier:
        backbone = build_backbone(name, **settings)
        return Classifier(backbone, LinearHead(backbone.feature_dim, num_classes))

    return build


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a finished run of LADE on the digits; read only."""
    output = tmp_path_factory.mktemp("shared") / "digits"
    return train(_tiny_config("method.name=lade"), output=output)


@pytest.fixture
def run_copy(digits_run: Run, tmp_path: Path) -> Path:
    """Return the directory of a copy of that run, to damage."""
    return Path(shutil.copytree(digits_run.directory, tmp_path / "run"))


@pytest.fixture
def opened_loaders(monkeypatch: pytest.MonkeyPatch) -> list[FileLoader]:
    """Collect the loaders of image files that are read from."""
    opened, start = list[FileLoader](), FileLoader._start

    def noted(loader: FileLoader, requests: Any) -> Any:
        opened.append(loader)
        return start(loader, requests)

    monkeypatch.setattr(FileLoader, "_start", noted)
    return opened


class Result(NamedTuple):
    """What a command line left: exit code, output and errors."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """Standard error without what training tells of itself."""
        told = ("data: ", "images: ", "network: ", "method: ", "epoch ", "about ")
        return [line for line in self.err.splitlines() if not line.startswith(told)]


@pytest.fixture
def tailshift(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Result]:
    """Run a command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        monkeypatch.setattr("sys.argv", ["tailshift", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Result(end.value.code, *capfd.readouterr())

    return run


def _write_image(
    path: Path, *, seed: int = 0, size: tuple[int, int] = (40, 32), mode: str = "RGB"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size[::-1] if mode == "L" else (*size[::-1], len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def write_image() -> Callable[..., Path]:
    """Write one image of random pixels; the suffix decides the format."""
    return _write_image


_LAYOUTS = {
    "imagenet_lt": ("ImageNet_LT_{}.txt", "{split}/n{c:08}/n{c:08}_{i}.JPEG"),
    "places_lt": ("Places_LT_{}.txt", "{split}_256/s/scene_{c}/{i:08}.jpg"),
    "inaturalist2018": ("iNaturalist18_{}.txt", "{split}2018/Aves/{c}/{i}.jpg"),
}


def _write_benchmark(
    root: Path, name: str, *, counts: Sequence[int] = (5, 3, 2), per_class: int = 2
) -> Path:
    list_name, pattern = _LAYOUTS[name]
    splits = {"train": counts, "val": [per_class] * len(counts)}
    if name != "inaturalist2018":
        splits["test"] = [per_class] * len(counts)
    for split, split_counts in splits.items():
        lines = []
        for c, count in enumerate(split_counts):
            for i in range(count):
                path = pattern.format(split=split, c=c, i=i)
                _write_image(root / path, seed=len(lines))
                lines.append(f"{path} {c}\n")
        (root / list_name.format(split)).write_text("".join(lines))
    return root


@pytest.fixture(scope="session")
def write_benchmark() -> Callable[..., Path]:
    """Write lists and JPEGs in the layout of a large benchmark, cut down."""
    return _write_benchmark


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let a tiny network's weights be at hand, as lite0 would be."""
    torch.manual_seed(0)
    tiny = timm_backbone.TimmBackbone("test_efficientnet").model
    torch.save(tiny.state_dict(), tmp_path / "tiny.pth")
    sha256 = hashlib.sha256((tmp_path / "tiny.pth").read_bytes()).hexdigest()
    published = pretrained.Published("test_efficientnet", "tiny", "tiny.pth", sha256)
    monkeypatch.setitem(pretrained.PUBLISHED, "lite0", published)
    monkeypatch.setattr(pretrained.Published, "path", tmp_path / "tiny.pth")


FUZZ_COLUMNS = (
    *("target", "inputs", "results", "sentences", "failures", "seed"),
    *("peak_megabytes", "seconds", "commit"),
)


@pytest.fixture(scope="session")
def log_fuzzing() -> Callable[..., None]:
    """Add a row to the CSV file that TAILSHIFT_FUZZ_LOG names, if it is set."""

    def log(**row: object) -> None:
        if "TAILSHIFT_FUZZ_LOG" not in os.environ:
            return
        path = Path(os.environ["TAILSHIFT_FUZZ_LOG"])
        command = ("git", "-C", str(Path(__file__).parent), "rev-parse", "--short=7")
        commit = subprocess.run((*command, "HEAD"), capture_output=True, text=True)
        is_new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FUZZ_COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row | {"commit": commit.stdout.strip()})

    return log


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Return a headless Chromium from the operating system's packages."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: no browser to drive"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH to open the page in")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def _write(path, table, as_bytes=False):
    if as_bytes:
        table = {key.encode(): value for key, value in table.items()}
    path.write_bytes(pickle.dumps(table, protocol=2))


def _write_cifar100(root, *, per_class=12, as_bytes=False, order=None):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", per_class), ("test", 2)):
        labels = np.tile(np.arange(100), count)
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        if name == "train" and order is not None:
            data, labels = data[order], labels[order]
        table = {"batch_label": name, "data": data, "fine_labels": labels.tolist()}
        _write(folder / name, table, as_bytes)
    names = [f"name {c}" for c in range(100)]
    _write(folder / "meta", {"fine_label_names": names}, as_bytes)
    return folder


def _write_cifar10(root, *, as_bytes=False):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels = np.tile(np.arange(10), 4)
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        table = {"batch_label": name, "data": data, "labels": labels.tolist()}
        _write(folder / name, table, as_bytes)
    names = [f"name {c}" for c in range(10)]
    _write(folder / "batches.meta", {"label_names": names}, as_bytes)
    return folder


def _change(path, **entries):
    table = pickle.loads(path.read_bytes()) | entries
    _write(path, {key: value for key, value in table.items() if value is not None})


@pytest.fixture
def write_cifar100():
    """Write 12 training and 2 test images per class; `order` shuffles the former."""
    return _write_cifar100


@pytest.fixture
def write_cifar10():
    """Write 20 training and 4 test images per class."""
    return _write_cifar10


@pytest.fixture
def change_file():
    """Replace entries of a file, or take away those given as None."""
    return _change
