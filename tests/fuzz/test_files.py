"""Whatever a file holds, reading it ends in a result or in one sentence.

Some hundred files by default; more than ten thousand with `pytest -m slow tests/fuzz`.
"""

import importlib
import io
import json
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save
from torch import nn
from torch.optim import SGD

import tailshift as ts
from tailshift import registry
from tailshift.cli import main
from tailshift.data.cifar import CIFAR10, read_names, read_split
from tailshift.data.own_forms import ImageCSV, ImageList
from tailshift.data.parquet import ImageParquet
from tailshift.evaluation.results import COLUMNS, read_results, result_rows
from tailshift.models import build_backbone, load_backbone_weights
from tailshift.runs.checkpoint import Position, load_checkpoint, save_checkpoint
from tailshift.runs.files import load_weights, save_weights
from tailshift.serving.image_sites import read_sites, sites_of
from tailshift.serving.inference import OnnxModel
from tailshift.serving.onnx_check import check_self_contained
from tailshift.storage import (
    CHECKSUM,
    FORMAT,
    NOTES,
    checksum,
)
from tailshift.targets import read_counts

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

Contents = st.SearchStrategy[bytes]

TOKENS = (
    *(b"\x00", b"\xff\xfe", b"\r", b"\n", b'"', b",", b"[" * 2000, b'{"a":' * 2000),
    *(b"nan", b"-1", b"1e999", b"9" * 20, b"9" * 5000, b"true", b"null", b"[]", b"{}"),
    *(b"../", b"/", b"\xe2\x80\xa8", b"\x1b[31m", b"\xff\xff\xff\x7f", b" " * 5000),
)


@st.composite
def changed(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give random bytes, or a valid file cut short or with bytes changed."""
    kind = draw(st.sampled_from(("random", "cut", "edited", "edited")))
    if kind == "random":
        return draw(st.binary(max_size=300))
    if kind == "cut":
        return valid[: draw(st.integers(0, len(valid)))]
    content = valid
    for _ in range(draw(st.integers(1, 5))):
        near = draw(st.sampled_from((300, len(content))))  # headers come first
        where = draw(st.integers(0, min(near, len(content))))
        removed = draw(st.sampled_from((0, 1, 1, 4, 30)))
        added = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
        content = content[:where] + added + content[where + removed :]
    return content


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below)
    ),
    max_leaves=6,
)


@st.composite
def strange_json(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give a valid JSON object with some of its values replaced or gone, unsealed."""
    content = json.loads(valid)
    for key in (CHECKSUM, FORMAT):
        content.pop(key, None)
    for _ in range(draw(st.integers(1, 3))):
        part = content
        key = draw(st.sampled_from(sorted(part)))
        while isinstance(part[key], dict) and part[key] and draw(st.booleans()):
            part = part[key]
            key = draw(st.sampled_from(sorted(part)))
        part[key] = draw(PLAIN)
        if draw(st.booleans()) and len(part) > 1:
            del part[key]
    return json.dumps(content).encode()


@st.composite
def strange_lines(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give lines of JSON, each with some of its values replaced or gone."""
    lines = [draw(strange_json(line)) for line in valid.splitlines()]
    return b"\n".join([*lines, b""])


ENTRIES = (
    *("logits", "labels", "source_counts", "logit_prior", "probs", "class_names"),
    *("model.weight", "model.bias", "weight", "bias", "random.cpu", "x"),
    *("optimizer.0.momentum_buffer", "optimizer.7.y", "optimizer.x"),
)
DTYPES = (
    *(torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.int64, torch.int64, torch.uint8, torch.bool),
)
METADATA = (
    *("", "[]", "{}", "2", "1", '["a", "b", "c"]', "[1]", "[" * 3000),
    '{"position": {}}',
    '{"position": {"epoch": 1e99}, "scaler": 3}',
    '{"position": {"sums": {"loss": NaN}}, "scaler": [1]}',
)
SHAPES = st.lists(st.integers(0, 4), max_size=3) | st.just([4, 3]) | st.just([3])


@st.composite
def strange_tensors(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give a file of any tensors whose checksum fits: a stranger can make one."""
    names = draw(st.sets(st.sampled_from(ENTRIES), max_size=5))
    tensors = {}
    for name in names:
        shape = draw(SHAPES)
        values = torch.full(shape, draw(st.sampled_from((0.0, 1.0, 2.0, -1.0))))
        tensors[name] = values.to(draw(st.sampled_from(DTYPES)))
    keys = (NOTES, "tailshift_predictions", "tailshift_weights", "class_names")
    metadata = {
        key: draw(st.sampled_from(METADATA) | st.text(max_size=5))
        for key in draw(st.sets(st.sampled_from(keys)))
    }
    if draw(st.sampled_from((True, True, False))):
        metadata[CHECKSUM] = checksum(tensors, metadata)
    return save(tensors, metadata=metadata)


@st.composite
def strange_arrays(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give an archive of any arrays."""
    dtypes = ("f4", "f8", "f2", "i8", "u8", "u1", "?", "c8", "U3", "S3", "M8[s]", "V4")
    arrays = {}
    names = (*ENTRIES[:6], "features", "split")
    for name in draw(st.sets(st.sampled_from(names), max_size=5)):
        arrays[name] = np.zeros(draw(SHAPES), draw(st.sampled_from(dtypes)))
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@st.composite
def strange_pickle(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give a pickled dict of any values under CIFAR's keys."""
    keys = st.sampled_from(("data", "labels", b"labels", "label_names", 3, b"\xff"))
    arrays = st.sampled_from(
        (np.zeros((2, 3072), np.uint8), np.zeros(2), np.array("a"))
    )
    table = draw(st.dictionaries(keys, PLAIN | arrays))
    return pickle.dumps(table, protocol=draw(st.integers(0, 5)))


@st.composite
def strange_header(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give the data of a safetensors file under a header with other values."""
    size = int.from_bytes(valid[:8], "little")
    header = draw(strange_json(valid[8 : 8 + size]))
    return len(header).to_bytes(8, "little") + header + valid[8 + size :]


IMAGE_TYPES = ("struct", "binary", "large_binary", "string", "int64", "null", "list")
LABELS = st.lists(
    st.integers(0, 2) | st.integers(-3, 2**63 - 1), min_size=4, max_size=4
) | st.sampled_from(
    (
        *(["a", "b", "a", "b"], ["", "\n", "\x1b[31m", "漢"], [0.5, 1.0, 2.0, 3.0]),
        *([None] * 4, [True, False] * 2, [[0]] * 4, [b"\xff"] * 4, [0, 1, 0, None]),
    )
)


@st.composite
def strange_table(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give a Parquet table with images, of any types, labels and class names."""
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    whole = IMAGE.read_bytes()
    some = st.sampled_from((whole, whole, b"", whole[:40], b"x", None))
    images: list[Any] = draw(st.lists(some, min_size=4, max_size=4))
    kind = draw(st.sampled_from(IMAGE_TYPES))
    if kind == "struct":
        field = draw(st.sampled_from(("bytes", "bytes", "path")))
        column = arrow.array([{field: image} for image in images])
    elif kind == "list":
        column = arrow.array([list(image or b"") for image in images])
    elif kind.endswith("binary"):
        column = arrow.array(images, getattr(arrow, kind)())
    else:
        values = {"string": "x", "int64": 3, "null": None}[kind]
        column = arrow.array([values] * 4, getattr(arrow, kind)())
    table = arrow.table({"image": column, "label": draw(LABELS)})
    if draw(st.booleans()):
        names = draw(PLAIN | st.just(["kea", "tui", "tui"]))
        about = {"info": {"features": {"label": {"names": names}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


@st.composite
def strange_metadata(draw: st.DrawFn, valid: bytes) -> bytes:
    """Give an ONNX file whose metadata say something else of it."""
    import onnx

    model = onnx.load_from_string(valid)
    entry = draw(st.sampled_from(list(model.metadata_props)))
    value = draw(PLAIN | st.lists(st.floats(), min_size=2, max_size=2))
    entry.value = draw(st.just(json.dumps(value)) | st.text(max_size=5))
    content: bytes = model.SerializeToString()
    return content


class Target(NamedTuple):
    """A file, what is read of it, and how others are made of it."""

    name: str
    valid: bytes
    read: Callable[[Path], Any]
    strategies: tuple[Callable[[bytes], Contents], ...] = (changed,)


def _read_run(path: Path) -> None:
    run = ts.load_run(path.parent)
    assert run.class_names
    assert run.model
    assert isinstance(run.metrics, list)
    assert isinstance(run.environment, dict)
    run.predictions("val")
    assert result_rows(run, ["uniform"]) if run.is_finished else True
    run.retarget(ts.priors.uniform(len(run.class_names)))


def _predict(path: Path) -> None:
    """Ask for an image's class as a user would: an answer, or one sentence."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        arguments = ["tailshift", "predict", str(path.parent), str(IMAGE)]
        with patch("sys.argv", arguments), pytest.raises(SystemExit) as end:
            main()
    assert end.value.code in (0, 2), errors.getvalue()
    assert "Traceback" not in errors.getvalue()


def _read_cifar(path: Path) -> None:
    read_split(path.parent, (path.name,), CIFAR10)


def _linear() -> tuple[nn.Module, SGD]:
    model = nn.Linear(3, 4)
    return model, SGD(model.parameters(), lr=0.1, momentum=0.9)


def _read_checkpoint(path: Path) -> None:
    model, optimizer = _linear()
    position, *_ = load_checkpoint(path, modules={"model": model}, optimizer=optimizer)
    assert isinstance(position, Position)
    model(torch.zeros(2, 3)).sum().backward()
    optimizer.step()


def _backbone() -> Any:
    return build_backbone("digits_net", in_channels=1, image_size=8)


def _read_backbone(path: Path) -> None:
    load_backbone_weights(_backbone(), path)


def _read_bank(path: Path) -> None:
    data = ts.FeatureCache.load(path.parent).data()
    next(data.train.loader(batch_size=2, training=True).epoch(0))


def _read_features(path: Path) -> None:
    shutil.rmtree(path.parent / "bank", ignore_errors=True)
    ts.FeatureCache.from_file(path.parent / "bank", path).data()


def _read_book(path: Path) -> None:
    book = ts.SitePriors.load(path)
    for site in ("all", *book.sites):
        assert torch.isfinite(book.prior(site)).all()
    for site in book.sites:
        book.num_samples(site)


def _read_sites(path: Path) -> None:
    sites_of(["a.jpg", "b/c.jpg"], read_sites(path), str(path))


def _read_parquet(path: Path) -> None:
    data = ImageParquet(path=str(path), image_size=8, skip_broken=True).load(seed=0)
    data.train.missing()
    next(data.train.loader(batch_size=4, training=True, num_workers=0).epoch(0))


def _read_onnx(path: Path) -> None:
    check_self_contained(path, path.read_bytes())
    model = OnnxModel(path, threads=1, is_own=True)  # each child would take a second
    pixels = model.prepare(IMAGE.read_bytes())
    f = model.logits(pixels[None])
    assert model.probs(f, model.source_prior).shape == (1, len(model.class_names))
    model.probe()


def _read_plugin(path: Path) -> None:
    try:
        ts.load_plugin(path)
    finally:
        for module in [m for m in sys.modules if m.startswith("tailshift_plugin_")]:
            registry._forget(module)


def _written(write: Callable[[Path], None], name: str) -> bytes:
    path = Path(mkdtemp()) / name
    write(path)
    content = path.read_bytes()
    shutil.rmtree(path.parent)
    return content


def _checkpoint(path: Path) -> None:
    model, optimizer = _linear()
    model(torch.zeros(2, 3)).sum().backward()
    optimizer.step()
    save_checkpoint(path, Position(), modules={"model": model}, optimizer=optimizer)


def _predictions(path: Path) -> None:
    ts.Predictions(torch.randn(4, 3), torch.tensor([0, 1, 2, 0])).save(path)


def _npz(path: Path) -> None:
    np.savez(path, logits=np.random.rand(4, 3), labels=np.array([0, 1, 2, 0]))


def _parquet(path: Path) -> None:
    arrow, parquet = (
        pytest.importorskip("pyarrow"),
        pytest.importorskip("pyarrow.parquet"),
    )
    images = [{"bytes": IMAGE.read_bytes()}] * 6
    table = arrow.table({"image": images, "label": [0, 1] * 3})
    parquet.write_table(table, path)


def _features(path: Path) -> None:
    np.savez(path, features=np.random.rand(6, 3), labels=np.array([0, 1] * 3))


def _book(path: Path) -> None:
    book = ts.SitePriors(["kea", "tui"], [0.25, 0.75])
    book.add("north")
    book.add("lake", counts=[9, 1], parent="north")
    book.add("hill", shares=[0.5, 0.5], num_samples=4.0, parent="north")
    book.save(path)


def _onnx(path: Path) -> None:
    """Write a network that adds up pixels, with what `tailshift export` says of one."""
    onnx = pytest.importorskip("onnx")
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    kinds = onnx.TensorProto
    nodes = [
        node("Cast", ["images"], ["x"], to=kinds.FLOAT),
        node("Flatten", ["x"], ["flat"]),
        node("MatMul", ["flat", "w"], ["logits"]),
    ]
    weights = onnx.numpy_helper.from_array(np.ones((64, 2), np.float32), "w")
    images = value("images", kinds.UINT8, ["N", 1, 8, 8])
    logits = value("logits", kinds.FLOAT, ["N", 2])
    graph = onnx.helper.make_graph(nodes, "g", [images], [logits], [weights])
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    facts = {"class_names": ["kea", "tui"], "image_size": 8, "in_channels": 1}
    facts |= {"resized": 9, "source_prior": [0.5, 0.5], "logit_prior": [0.5, 0.5]}
    texts = {key: json.dumps(value) for key, value in facts.items()}
    onnx.helper.set_model_props(model, texts)
    path.write_bytes(model.SerializeToString())


RECIPE = Path(ts.__file__).parent / "recipes" / "digits_lt.toml"
CIFAR = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [9]}, protocol=2)
RESULTS = (",".join(COLUMNS) + "\n" + ",".join(COLUMNS) + "\n").encode()
IMAGE = Path(mkdtemp()) / "image.png"
Image.new("L", (8, 8)).save(IMAGE)
PLUGIN = b"""
from tailshift.methods import METHODS, Softmax

@METHODS.register("mine")
class Mine(Softmax):
    '''Softmax again.'''
    title = "Mine"
"""
NAMES = pickle.dumps({"label_names": [f"class {c}" for c in range(10)]}, protocol=2)
TENSORS = (changed, strange_tensors)
TARGETS = {
    "recipe": Target("a.toml", RECIPE.read_bytes(), ts.load_recipe),
    "list": Target(
        "a.txt", b"a/b.jpg 0\na/c.jpg 1\n", lambda path: ImageList().read(path)
    ),
    "csv": Target(
        "a.csv",
        b"path,label,split\na/b.jpg,kea,train\nc.jpg,tui,test\n",
        lambda path: ImageCSV().read(path),
    ),
    "parquet": Target(
        "a.parquet",
        _written(_parquet, "a.parquet"),
        _read_parquet,
        (changed, strange_table),
    ),
    "features": Target(
        "a.npz", _written(_features, "a.npz"), _read_features, (changed, strange_arrays)
    ),
    "book of priors": Target(
        "book.json", _written(_book, "book.json"), _read_book, (changed, strange_json)
    ),
    "sites": Target("a.csv", b"path,site\na.jpg,lake\nb/c.jpg,hill\n", _read_sites),
    "ONNX": Target(
        "a.onnx", _written(_onnx, "a.onnx"), _read_onnx, (changed, strange_metadata)
    ),
    "plugin": Target("mine.py", PLUGIN, _read_plugin),
    "counts": Target("a.csv", b"count\n3\n2\n", read_counts),
    "counts as JSON": Target("a.json", b"[3, 2, 1]", read_counts),
    "results": Target("results.csv", RESULTS, read_results),
    "cifar": Target("test_batch", CIFAR, _read_cifar, (changed, strange_pickle)),
    "cifar names": Target(
        "batches.meta",
        NAMES,
        lambda path: read_names(path.parent, CIFAR10),
        (changed, strange_pickle),
    ),
    "predictions": Target(
        "a.safetensors",
        _written(_predictions, "a.safetensors"),
        ts.Predictions.load,
        TENSORS,
    ),
    "npz": Target(
        "a.npz", _written(_npz, "a.npz"), ts.Predictions.load, (changed, strange_arrays)
    ),
    "checkpoint": Target(
        "checkpoint.safetensors",
        _written(_checkpoint, "checkpoint.safetensors"),
        _read_checkpoint,
        TENSORS,
    ),
    "weights": Target(
        "weights.safetensors",
        _written(lambda path: save_weights(path, _linear()[0]), "w.safetensors"),
        lambda path: load_weights(path, _linear()[0]),
        TENSORS,
    ),
    "backbone": Target(
        "backbone.safetensors",
        _written(lambda path: save_weights(path, _backbone()), "w.safetensors"),
        _read_backbone,
        TENSORS,
    ),
}
BANK_FILES = {
    "bank.json": (changed, strange_json),
    "train.safetensors": (changed, strange_header),
}
RUN_FILES = {
    "config.json": (changed, strange_json),
    "run.json": (changed, strange_json),
    "environment.json": (changed, strange_json),
    "metrics.jsonl": (changed, strange_lines),
    "weights.safetensors": (changed,),
    "predictions/val.safetensors": (changed,),
}
SLOW_EXAMPLES, EXAMPLES = 650, 25
Fuzz = Callable[..., Any]


def _fuzz(
    fuzz: Fuzz, name: str, target: Target, path: Path, *, is_long: bool = False
) -> None:
    def read(content: bytes) -> None:
        path.unlink(missing_ok=True)  # an earlier one may be mapped into memory
        path.write_bytes(content)
        target.read(path)

    path.write_bytes(target.valid)
    target.read(path)  # what it loads once is no growth
    contents = st.one_of([make(target.valid) for make in target.strategies])
    count = SLOW_EXAMPLES if is_long else EXAMPLES
    fuzz(name, contents, read, count, is_long=is_long)


@pytest.mark.parametrize("name", TARGETS)
def test_file__ends_in_a_result_or_one_sentence(
    name: str, tmp_path: Path, fuzz: Fuzz
) -> None:
    _fuzz(fuzz, name, TARGETS[name], tmp_path / TARGETS[name].name)


@pytest.mark.parametrize("name", RUN_FILES)
def test_run__ends_in_a_result_or_one_sentence(
    name: str, run_copy: Path, fuzz: Fuzz
) -> None:
    valid = (run_copy / name).read_bytes()
    target = Target(name, valid, _read_run_of(name), RUN_FILES[name])
    _fuzz(fuzz, name, target, run_copy / name)


@pytest.mark.parametrize("name", BANK_FILES)
def test_bank__ends_in_a_result_or_one_sentence(
    name: str, tmp_path: Path, fuzz: Fuzz
) -> None:
    _fuzz(fuzz, name, _bank(tmp_path, name), tmp_path / name)


def _bank(folder: Path, name: str) -> Target:
    x, y = np.random.rand(6, 3).astype(np.float32), ["kea", "tui"] * 3
    ts.FeatureCache.from_arrays(folder, train=(x, y), test=(x, y))
    return Target(name, (folder / name).read_bytes(), _read_bank, BANK_FILES[name])


@pytest.mark.parametrize("name", ["config.json", "run.json"])
def test_predict__ends_in_an_answer_or_one_sentence(
    name: str, run_copy: Path, fuzz: Fuzz
) -> None:
    valid = (run_copy / name).read_bytes()
    target = Target(name, valid, _predict, RUN_FILES[name])
    _fuzz(fuzz, name, target, run_copy / name)


DEEP = 200_000
BOMBS = {
    "counts as JSON": b"[" * DEEP,
    "results": b"x" * DEEP,
    "recipe": b"[optim]\nlr = " + b"[" * DEEP,
    "cifar": b"\x80\x02}" + b")" + b"\x85" * DEEP + b"K\x01s.",  # a nested tuple as key
    "cifar names": b"\x80\x02]r\xff\xff\xff\x3f.",  # a memo of 10⁹ entries
    "list": b"a.jpg 0\nb.jpg 999999999999999999\n",  # 10¹⁸ classes
}


@pytest.mark.parametrize("name", BOMBS)
def test_file__made_to_exhaust_memory_or_stack(name: str, tmp_path: Path) -> None:
    path = tmp_path / TARGETS[name].name
    path.write_bytes(BOMBS[name])
    with pytest.raises(ValueError, match=path.name) as error:
        TARGETS[name].read(path)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 2000


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_file__many_times(name: str, tmp_path: Path, fuzz: Fuzz) -> None:
    target = TARGETS[name]
    _fuzz(fuzz, name, target, tmp_path / target.name, is_long=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", BANK_FILES)
def test_bank__many_times(name: str, tmp_path: Path, fuzz: Fuzz) -> None:
    _fuzz(fuzz, name, _bank(tmp_path, name), tmp_path / name, is_long=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_FILES)
def test_run__many_times(name: str, run_copy: Path, fuzz: Fuzz) -> None:
    valid = (run_copy / name).read_bytes()
    target = Target(name, valid, _read_run_of(name), RUN_FILES[name])
    _fuzz(fuzz, name, target, run_copy / name, is_long=True)


def _read_run_of(name: str) -> Callable[[Path], None]:
    depth = len(Path(name).parts) - 1
    return lambda path: _read_run(path.parents[depth] / "config.json")
