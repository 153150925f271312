"""ONNX models: files, pixels and batches."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("python_multipart")

from tailshift.serving.inference import OnnxModel, needed

pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)


def test_needed__says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as error:
        needed("tailshift_absent")
    assert str(error.value) == (
        "Serving needs the package tailshift_absent, which is not installed. Install "
        "it with `pip install tailshift[serve]`."
    )


def test_model__must_be_an_exported_file(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="ONNX") as broken:
        OnnxModel(tmp_path / "a.onnx")
    assert str(broken.value).startswith(f"{tmp_path / 'a.onnx'} is no ONNX file")
    with pytest.raises(FileNotFoundError) as missing:
        OnnxModel(tmp_path / "b.onnx")
    assert str(missing.value) == f"There is no run or ONNX file {tmp_path / 'b.onnx'}."
