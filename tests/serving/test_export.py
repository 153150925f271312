"""Exported models: the same answers as PyTorch's, whatever the batch and the prior."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailshift.serving.export
from tailshift import Run, load_run, priors
from tailshift.compensation import post_compensate
from tailshift.losses import focal_log_posteriors
from tailshift.serving.export import (
    export_onnx,
    export_program,
    metadata,
    relative_gap,
)

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

REVERSED = priors.from_counts(list(range(1, 11)))


@pytest.fixture(scope="module")
def folder(digits_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of files of both kinds, with a prior built in and without."""
    folder = tmp_path_factory.mktemp("exported")
    export_onnx(digits_run, folder / "open.onnx")
    export_onnx(digits_run, folder / "reversed.onnx", target_prior=REVERSED)
    export_program(digits_run, folder / "open.pt2")
    return folder


def _pixels(count: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)


def _expected(
    run: Run, pixels: np.ndarray[Any, Any], prior: torch.Tensor
) -> torch.Tensor:
    """Normalise, classify and compensate, each written out."""
    images = torch.from_numpy(pixels).double() / 255
    images = (images - run.facts.mean[0]) / run.facts.std[0]
    with torch.no_grad():
        logits = run.model(images.float())
    uniform = priors.uniform(10)  # LADE's logits carry it
    return post_compensate(logits, logit_prior=uniform, target_prior=prior)


def _answers(path: Path, **inputs: Any) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(["logits", "probs"], inputs))


@pytest.mark.parametrize("count", [1, 3, 64])
def test_onnx__prior_as_an_input(digits_run: Run, folder: Path, count: int) -> None:
    pixels = _pixels(count)
    for prior in (priors.uniform(10), REVERSED, torch.eye(10).double()[3]):
        logits, probs = _answers(
            folder / "open.onnx", images=pixels, target_prior=prior.float().numpy()
        )
        expected = _expected(digits_run, pixels, prior)
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(probs, expected.softmax(-1), atol=1e-4)


def test_onnx__counts_as_an_input_are_shares(folder: Path) -> None:
    pixels, counts = _pixels(4), np.arange(1, 11, dtype=np.float32)
    path = folder / "open.onnx"
    by_counts = _answers(path, images=pixels, target_prior=counts)
    by_shares = _answers(path, images=pixels, target_prior=counts / counts.sum())
    np.testing.assert_allclose(by_counts[0], by_shares[0], atol=1e-5)


@pytest.mark.parametrize("count", [1, 5])
def test_onnx__prior_built_in(digits_run: Run, folder: Path, count: int) -> None:
    pixels = _pixels(count)
    _, probs = _answers(folder / "reversed.onnx", images=pixels)
    expected = _expected(digits_run, pixels, REVERSED).softmax(-1)
    np.testing.assert_allclose(probs, expected, atol=1e-4)


def test_onnx__metadata(digits_run: Run, folder: Path) -> None:
    session = onnxruntime.InferenceSession(folder / "reversed.onnx")
    entries = session.get_modelmeta().custom_metadata_map
    facts = {key: json.loads(text) for key, text in entries.items()}
    assert facts["class_names"] == list("0123456789")
    np.testing.assert_allclose(facts["logit_prior"], 0.1)
    np.testing.assert_allclose(facts["target_prior"], REVERSED)
    counts = digits_run.source_counts.numpy()
    np.testing.assert_allclose(facts["source_prior"], counts / counts.sum())
    assert (facts["image_size"], facts["resized"], facts["in_channels"]) == (8, 8, 1)
    assert (facts["method"], facts["recipe"]) == ("lade", "digits_lt")
    [given] = session.get_inputs()
    assert (given.name, given.type, given.shape[1:]) == (
        "images",
        "tensor(uint8)",
        [1, 8, 8],
    )


def test_metadata__has_no_prior_where_it_is_an_input(digits_run: Run) -> None:
    assert metadata(digits_run, None)["target_prior"] == "null"


def test_program__loads_and_answers(digits_run: Run, folder: Path) -> None:
    extra = {"class_names": ""}
    program = torch.export.load(folder / "open.pt2", extra_files=extra)
    assert json.loads(extra["class_names"]) == list("0123456789")
    pixels = _pixels(9)
    _, probs = program.module()(
        images=torch.from_numpy(pixels), target_prior=REVERSED.float()
    )
    expected = _expected(digits_run, pixels, REVERSED).softmax(-1)
    torch.testing.assert_close(probs, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("found", "gap"),
    [
        ([200.0, 0.01, -math.inf], 0.01 / 200),  # rounding of a sum of large terms
        ([200.0, 0.0, -1e9], math.inf),
        ([200.0, math.nan, -math.inf], math.nan),
    ],
)
def test_relative_gap(found: list[float], gap: float) -> None:
    expected = torch.tensor([200.0, 0.0, -math.inf])
    assert relative_gap(torch.tensor(found), expected) == pytest.approx(
        gap, rel=1e-6, nan_ok=True
    )


def test_export__a_difference_is_refused_and_nothing_is_left(
    digits_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(path: Path) -> Any:
        def answers(inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
            n = len(inputs["images"])
            return [torch.zeros(n, 10), torch.full((n, 10), 0.1)]

        return answers

    monkeypatch.setattr(tailshift.serving.export, "_onnx_answers", off)
    with pytest.raises(ValueError, match="differ") as error:
        export_onnx(digits_run, tmp_path / "model.onnx", target_prior=REVERSED)
    start, _, rest = str(error.value).partition(" by ")
    assert start == "the exported model's probabilities differ from PyTorch's"
    assert rest.partition(" ")[2] == (
        "for 1 images, more than 0.0001; nothing was written."
    )
    assert list(tmp_path.iterdir()) == []


def test_export__without_the_extra(
    digits_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ModuleNotFoundError) as error:
        export_onnx(digits_run, tmp_path / "model.onnx")
    assert str(error.value) == (
        "ONNX files need the package onnxscript, which is not installed. Install it "
        "with `pip install tailshift[export]`."
    )


def test_export__refuses_a_prior_of_another_length(
    digits_run: Run, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="entries") as error:
        export_onnx(digits_run, tmp_path / "model.onnx", target_prior=[0.5, 0.5])
    assert str(error.value) == (
        "`target_prior` has 2 entries but `logits` has 10 classes."
    )


class Undecided(torch.nn.Module):
    """A network whose way depends on the values of its input."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.sum().item() > 0:
            return images.new_zeros(len(images), 10)
        return images.new_ones(len(images), 10)


@pytest.mark.parametrize("write", [export_onnx, export_program])
def test_export__a_network_that_cannot_be_written(
    run_copy: Path, tmp_path: Path, write: Any
) -> None:
    run = load_run(run_copy)
    vars(run)["model"] = Undecided()
    with pytest.raises(ValueError, match="exported") as error:
        write(run, tmp_path / "model")
    text = str(error.value)
    assert text.startswith(f"the network of {run_copy} (lade) cannot be exported: ")
    assert text.endswith(".")
    assert "\n" not in text
    assert not (tmp_path / "model").exists()


def test_onnx__distances_are_translated(run_copy: Path, tmp_path: Path) -> None:
    """The memory head of OLTR needs them, and the exporter does not know them."""

    class Distances(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = images.flatten(1)
            return -torch.cdist(x, torch.eye(10, x.shape[1]))

    run = load_run(run_copy)
    vars(run)["model"] = Distances()
    assert export_onnx(run, tmp_path / "model.onnx") < 1e-5


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_onnx__undoes_the_focal_loss_of_a_sure_network(
    run_copy: Path, tmp_path: Path, form: Any
) -> None:
    """A log of a sigmoid would be −inf there, where PyTorch has −300."""

    class Sure(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return focal_log_posteriors(40 * images.flatten(1)[:, :10], form=form)

    run = load_run(run_copy)
    vars(run)["model"] = Sure()
    assert export_onnx(run, tmp_path / "model.onnx") < 1e-5
