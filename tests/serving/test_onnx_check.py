"""ONNX files of strangers: they read no other file, end, and give what they must."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper

from tailshift.serving.inference import OnnxModel
from tailshift.serving.onnx_check import check_self_contained

FACTS: dict[str, Any] = {
    "class_names": ["kea", "kiwi", "tui"],
    "source_prior": [0.5, 0.3, 0.2],
    "logit_prior": [0.5, 0.3, 0.2],
    "image_size": 4,
    "in_channels": 1,
    "resized": 4,
}


def _model(num_outputs: int = 3, body: str = "matmul", **facts: Any) -> Any:
    """Return a linear model of 4×4 grey pixels, or a hostile one."""
    weights = np.ones((16, num_outputs), np.float32)
    if body == "nan":
        weights[0, 0] = np.nan
    nodes = [
        helper.make_node("Cast", ["images"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["f"]),
    ]
    tensors = [numpy_helper.from_array(weights, "weights")]
    if body == "loop":
        nodes += _endless("f")
        tensors += [
            numpy_helper.from_array(np.array(2**62), "times"),
            numpy_helper.from_array(np.array(True), "always"),
        ]
    elif body == "memory":
        shape = np.array([2**34], np.int64)
        tensors.append(numpy_helper.from_array(shape, "huge"))
        nodes += [
            helper.make_node("ConstantOfShape", ["huge"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=0),
            helper.make_node("Add", ["f", "zero"], ["logits"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["f"], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", 1, 4, 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", None])],
        tensors,
    )
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    entries = {key: json.dumps(value) for key, value in (FACTS | facts).items()}
    helper.set_model_props(model, entries)
    return model


def _endless(name: str) -> list[Any]:
    """Return a loop of 2^62 rounds that gives its input."""
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["on_out"]),
            helper.make_node("Neg", ["v"], ["v_out"]),
        ],
        "body",
        [
            scalar("i", TensorProto.INT64, []),
            scalar("on", TensorProto.BOOL, []),
            scalar("v", TensorProto.FLOAT, ["N", None]),
        ],
        [
            scalar("on_out", TensorProto.BOOL, []),
            scalar("v_out", TensorProto.FLOAT, ["N", None]),
        ],
    )
    return [helper.make_node("Loop", ["times", "always", name], ["logits"], body=body)]


def _external(folder: Path) -> Any:
    """Return a model whose weights are in a file next to it."""
    model = _model()
    [tensor] = model.graph.initializer
    (folder / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return model


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Any], Path]:
    """Write a model as a file."""

    def save(model: Any) -> Path:
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return save


def test_model__of_a_plain_file_is_taken(save: Callable[[Any], Path]) -> None:
    model = OnnxModel(save(_model()), threads=1)
    f = model.logits(np.full((2, 1, 4, 4), 2, np.uint8))
    np.testing.assert_allclose(f, np.full((2, 3), 32.0))


def test_model__with_data_in_other_files_is_rejected(
    save: Callable[[Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where ONNX Runtime would find the file
    with pytest.raises(ValueError, match="keeps tensors in other files"):
        OnnxModel(save(_external(tmp_path)))


def test_check__finds_external_data_in_every_place(tmp_path: Path) -> None:
    external = _external(tmp_path).graph.initializer[0]
    inner = helper.make_graph([], "inner", [], [], [external])
    nodes = {
        "attribute": helper.make_node("Constant", [], ["c"], value=external),
        "subgraph": helper.make_node("If", ["c"], ["d"], then_branch=inner),
    }
    for name, node in nodes.items():
        model = _model()
        model.graph.node.append(node)
        with pytest.raises(ValueError, match="other files"):
            check_self_contained(tmp_path / name, model.SerializeToString())
        model = _model()
        model.functions.append(
            helper.make_function(
                "d", "f", [], [], [node], [helper.make_opsetid("", 18)]
            )
        )
        with pytest.raises(ValueError, match="other files"):
            check_self_contained(tmp_path / name, model.SerializeToString())


HOSTILE: dict[str, dict[str, Any]] = {
    "logits have the shape": {"num_outputs": 2},
    "logits are not finite": {"body": "nan"},
    "distinct classes": {"class_names": ["kea", "kea", "tui"]},
    "metadata": {"logit_prior": [float("nan"), 0.5, 0.5]},
    "their priors": {"source_prior": [float("inf"), 0.5, 0.5]},
    "have distinct": {"source_prior": [0.5, 0.5, 0.5]},
    "no ONNX file of `tailshift export`": {"target_prior": [1.0]},
    "that can be run": {"body": "memory"},
}


@pytest.mark.parametrize("text", HOSTILE)
def test_model__of_a_stranger_ends_in_a_sentence(
    save: Callable[[Any], Path], text: str
) -> None:
    with pytest.raises(ValueError, match=text) as error:
        OnnxModel(save(_model(**HOSTILE[text])))
    assert "\n" not in str(error.value)


def test_model__that_never_ends_is_given_up(
    save: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailshift.serving.onnx_check._PROBE_SECONDS", 8.0)
    with pytest.raises(ValueError, match="did not classify 2 images within 8 s"):
        OnnxModel(save(_model(body="loop")))
