"""Checks of an ONNX file before it is used: no other files, and it must end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tailshift.text import cut

__all__ = ["check_model_runs", "check_self_contained"]

_PROBE_SECONDS = 60.0
_MAX_MEMORY = 2**34  # bytes of the child process; a graph may ask for any number
_MAX_DEPTH = 50

# Fields of ONNX's protocol buffers that lead to tensors: {message: {field: message}}.
_FIELDS = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor",
        6: "Graph",
        10: "Tensor",
        11: "Graph",
        22: "SparseTensor",
        23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of Tensor

_CHILD = """
import json, sys
import numpy as np
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
except (ImportError, ValueError, OSError):
    pass
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 4
try:
    session = ort.InferenceSession(
        sys.stdin.buffer.read(), options, providers=["CPUExecutionProvider"]
    )
    facts = {
        key: json.loads(text)
        for key, text in session.get_modelmeta().custom_metadata_map.items()
        if key in ("image_size", "in_channels", "class_names")
    }
    size, num_classes = facts["image_size"], len(facts["class_names"])
    feed = {"images": np.zeros((2, facts["in_channels"], size, size), np.uint8)}
    if "target_prior" in {given.name for given in session.get_inputs()}:
        feed["target_prior"] = np.ones(num_classes, np.float32)
    [logits] = session.run(["logits"], feed)
    fault = ""
    if logits.shape != (2, num_classes):
        fault = f"its logits have the shape {logits.shape}, not (2, {num_classes})"
    elif not np.isfinite(logits).all():
        fault = "its logits are not finite"
except MemoryError:
    fault = "it needs too much memory"
except Exception as error:
    fault = str(error).partition("\\n")[0] or type(error).__name__
print(json.dumps(fault))
"""


def check_model_runs(path: Path, content: bytes) -> None:
    """Run a model once in a child process with limited time and memory.

    Use it for files of strangers: a graph may loop for ever or ask for any amount of
    memory, and ONNX Runtime cannot be interrupted.

    Args:
        path: Name of the file, for messages.
        content: The file.

    Raises:
        ValueError: If the model fails, does not end or returns something else than
            finite logits (N, C).
    """
    command = [sys.executable, "-I", "-c", _CHILD, str(_MAX_MEMORY)]
    try:
        done = subprocess.run(
            command, input=content, capture_output=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{path} cannot be used: the model did not classify 2 images within "
            f"{_PROBE_SECONDS:g} s."
        ) from None
    try:
        fault = json.loads(done.stdout)
    except ValueError:
        fault = f"its process ended with exit code {done.returncode}"
    if fault:
        raise ValueError(
            f"{path} is no ONNX file of `tailshift export` that can be run "
            f"({cut(fault)})."
        )


def check_self_contained(path: Path, content: bytes) -> None:
    """Reject a model with tensors in other files, which the model's author names.

    ONNX Runtime reads such files from the working directory, even if the model itself
    is given as bytes.

    Args:
        path: Name of the file, for messages.
        content: The file.
    """
    try:
        is_external = _has_external(memoryview(content), "Model")
    except (ValueError, IndexError):
        raise ValueError(f"{path} is no ONNX file.") from None
    if is_external:
        raise ValueError(
            f"{path} keeps tensors in other files, which are not read. Export it as "
            "one file with `tailshift export`."
        )


def _has_external(message: memoryview, kind: str, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH:
        raise ValueError("messages are nested too deeply")
    found, inner = False, _FIELDS.get(kind, {})
    for field, value in _fields(message):
        if kind == "Tensor":
            found = found or field == _EXTERNAL_DATA
            found = found or (field == _DATA_LOCATION and value == 1)
        elif field in inner and isinstance(value, memoryview):
            found = found or _has_external(value, inner[field], depth + 1)
    return found


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a protocol buffer."""
    start = 0
    while start < len(message):
        key, start = _varint(message, start)
        wire, field = key & 7, key >> 3
        if wire == 0:
            value, start = _varint(message, start)
            yield field, value
            continue
        if wire == 2:
            size, start = _varint(message, start)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} is unknown")
        if start + size > len(message):
            raise ValueError("the message is cut short")
        yield field, message[start : start + size]
        start += size


def _varint(message: memoryview, start: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, start
    raise ValueError("a number is too long")
