"""Files from a stranger never run anything, and never lead out of their folder."""

import ast
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailshift as ts
from tailshift.data.cifar import CIFAR10, read_names, read_split
from tailshift.data.list_files import read_list
from tailshift.data.own_forms import read_rows
from tailshift.evaluation.results import read_results
from tailshift.models import build_backbone, load_backbone_weights
from tailshift.runs.checkpoint import load_checkpoint, read_position
from tailshift.runs.files import read_metrics
from tailshift.storage import read_json
from tailshift.targets import read_counts

SOURCE = Path(ts.__file__).parent


class _Payload:
    """Makes a file as soon as it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "the payload ran"


def _pickled(marker: Path) -> bytes:
    return pickle.dumps(_Payload(marker))


def _torch_saved(marker: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(2), "more": _Payload(marker)}, file)
    return file.getvalue()


def _npz(marker: Path) -> bytes:
    file = io.BytesIO()
    array = np.array([_Payload(marker)], dtype=object)
    np.savez(file, logits=array, labels=np.array([0]))
    return file.getvalue()


def _npy(marker: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([_Payload(marker)], dtype=object))
    return file.getvalue()


def test_payload__would_run(marker: Path) -> None:
    """Else none of the tests below could fail."""
    pickle.loads(_pickled(marker))
    assert marker.exists()


PAYLOADS = [_pickled, _torch_saved, _npz, _npy]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "run.json",
        "environment.json",
        "metrics.jsonl",
        "weights.safetensors",
        "checkpoint.safetensors",
        "predictions/test.safetensors",
    ],
)
def test_run__payload_in_any_of_its_files(
    run_copy: Path, marker: Path, name: str, payload: Callable[[Path], bytes]
) -> None:
    content = payload(marker)
    (run_copy / name).write_bytes(content + b"\n")

    def use() -> None:
        run = ts.load_run(run_copy)
        assert run.metrics
        assert run.environment
        run.predictions()
        assert run.model
        read_position(run_copy / "checkpoint.safetensors")

    with pytest.raises(ValueError, match=name.split("/")[-1]) as error:
        use()
    assert len(str(error.value).splitlines()) == 1
    assert not marker.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_predictions__payload(
    tmp_path: Path, marker: Path, suffix: str, payload: Callable[[Path], bytes]
) -> None:
    path = tmp_path / f"logits{suffix}"
    path.write_bytes(payload(marker))
    with pytest.raises(ValueError, match=path.name):
        ts.Predictions.load(path)
    assert not marker.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_weights__payload(
    tmp_path: Path, marker: Path, payload: Callable[[Path], bytes]
) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(payload(marker))
    backbone = build_backbone("digits_net", in_channels=1, image_size=8)
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_backbone_weights(backbone, path)
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        load_checkpoint(path, modules={"model": backbone}, optimizer=None)
    assert not marker.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_cifar__payload(
    tmp_path: Path, marker: Path, payload: Callable[[Path], bytes]
) -> None:
    for name in (*CIFAR10.test_files, CIFAR10.names_file):
        (tmp_path / name).write_bytes(payload(marker))
    with pytest.raises(ValueError, match="test_batch"):
        read_split(tmp_path, CIFAR10.test_files, CIFAR10)
    with pytest.raises(ValueError, match=r"batches\.meta"):
        read_names(tmp_path, CIFAR10)
    assert not marker.exists()


def test_source__calls_nothing_that_unpickles() -> None:
    """`data/safe_pickle.py` has the one unpickler, which answers four names."""
    unsafe = {"pickle.load", "pickle.loads", "joblib.load", "eval"}
    safe_with = {"np.load": "allow_pickle=False", "torch.load": "weights_only=True"}
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name in unsafe or safe_with.get(name, "") not in ast.unparse(node):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno} {name}")
    assert found == []


TEXTS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "run.json": (read_json, 128),
    "counts.txt": (read_counts, 128),
    "counts.json": (read_counts, 128),
    "recipe.toml": (ts.load_recipe, 128),
    "results.csv": (read_results, 128),
    "metrics.jsonl": (lambda path: read_metrics(path.parent), 128),
    "list.txt": (read_list, 1024),
    "table.csv": (read_rows, 1024),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text__larger_than_any_of_ours_is_not_read(name: str, tmp_path: Path) -> None:
    """A terabyte that takes no room on the disk would take all memory."""
    path, (read, most) = tmp_path / name, TEXTS[name]
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(ValueError, match="larger") as error:
        read(path)
    assert str(error.value) == (
        f"`{path}` must not be larger than {most} MB, but has 1048576 MB."
    )
    os.truncate(path, most * 2**20 + 1)
    with pytest.raises(ValueError, match="larger"):
        read(path)


OUTSIDE = ["../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "a/..", "a\0b.jpg"]


@pytest.mark.parametrize("outside", OUTSIDE)
def test_lists__no_path_leaves_the_image_folder(tmp_path: Path, outside: str) -> None:
    lines, table = tmp_path / "list.txt", tmp_path / "table.csv"
    lines.write_text(f"a/b.jpg 0\n{outside} 0\n")
    table.write_text(f"path,label\na/b.jpg,kea\n{outside},kea\n")
    for where, read in ((lines, read_list), (table, read_rows)):
        line = 2 if where is lines else 3
        with pytest.raises(ValueError, match="inside the image folder") as error:
            read(where)
        shown = outside if outside.isprintable() else repr(outside)
        assert str(error.value) == (
            f"`{where}` line {line} must name a path inside the image folder, but "
            f"names {shown}. Write it relative to that folder, without `..`."
        )


def test_npz__names_in_an_archive_are_only_names(tmp_path: Path) -> None:
    """Nothing is unpacked to disk, wherever an entry says that it belongs."""
    path = tmp_path / "in" / "logits.npz"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../escaped.npy", _npy_of_zeros())
    with pytest.raises(ValueError, match="unknown entry"):
        ts.Predictions.load(path)
    assert list(tmp_path.rglob("*.npy")) == []


def _npy_of_zeros() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(2))
    return file.getvalue()


def test_images__links_are_followed(
    tmp_path: Path, write_image: Callable[..., Path]
) -> None:
    """Folders of links to one copy of the images are common; only images are read."""
    store = tmp_path / "store"
    for c, name in enumerate(("kea", "tui")):
        for i in range(4):
            write_image(store / name / f"{i}.png", seed=10 * c + i)
    root = tmp_path / "images"
    root.mkdir()
    (root / "kea").symlink_to(store / "kea")
    shutil.copytree(store / "tui", root / "tui")
    (root / "tui" / "0.png").unlink()
    (root / "tui" / "0.png").symlink_to(store / "tui" / "0.png")
    listed = [
        f"{name}/{i}.png {c}" for c, name in enumerate(("kea", "tui")) for i in range(4)
    ]
    (root / "list.txt").write_text("\n".join(listed))
    settings = ["data.name=list", f"data.path={root / 'list.txt'}"]
    data = ts.load_recipe("own_images", settings).data.load(root=None, seed=0)
    assert len(data.train) + len(data.val or ()) + len(data.test) == 8
