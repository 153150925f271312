"""Every registered method is trained, interrupted, resumed and evaluated."""

import dataclasses
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tailshift as ts
from tailshift.data import LongTailedData
from tailshift.methods import METHODS
from tailshift.models import Classifier
from tailshift.runs.files import WEIGHTS
from tailshift.runs.network import place_head
from tailshift.training.build import build_loss
from tailshift.training.distributed import build_fabric
from tailshift.training.inference import SplitFeatures
from tailshift.training.progress import TrainingProgress
from tailshift.training.resolve import new_model

STEPS = 5
"""Of an epoch: 276 images in batches of 64."""


def _config(name: str, *settings: str) -> ts.RunConfig:
    """Return one epoch of the digits; one of the second stage too, if it has any."""
    fields = {field.name for field in dataclasses.fields(METHODS.get(name))}
    short = ["method.epochs=1"] if "epochs" in fields else []
    method = [f"method.name={name}", *short]
    return ts.load_recipe("digits_lt", [*method, "train.epochs=1", *settings])


@pytest.fixture(scope="module", params=METHODS.names())
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ts.Run:
    """Return the finished run of a method."""
    output = tmp_path_factory.mktemp("methods") / request.param
    return ts.train(_config(request.param), output=output)


def test_method__trains_and_answers_for_all_targets(run: ts.Run) -> None:
    assert run.is_finished
    assert all(0 < record["loss"] < 100 for record in run.metrics)
    records = ts.evaluate(run.predictions())
    assert len(records) == 22
    assert len({record.target for record in records}) == 11
    assert all(0 < record.accuracy <= 1 for record in records)
    expected = run.config.logit_prior(run.source_counts)
    carried = run.predictions().logit_prior
    assert carried is not None
    torch.testing.assert_close(carried, expected)


def test_method__saved_weights_give_the_saved_logits(run: ts.Run) -> None:
    data = run.config.data.load(root=None, seed=0)
    images = (data.test.images / 255 - torch.tensor(data.mean)) / torch.tensor(data.std)
    with torch.inference_mode():
        logits = ts.load_run(run.directory).model(images)
    torch.testing.assert_close(logits, run.predictions().logits)


@pytest.mark.parametrize("after", [2, STEPS + 2])
def test_method__interrupted_and_resumed_is_the_same(
    run: ts.Run, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the first epoch, and within the second stage where it has steps."""
    if after > STEPS * len(run.metrics):
        pytest.skip("has no second stage that trains")
    left = itertools.count(after - 1, -1)

    def step(*args: Any) -> None:
        if next(left) == 0:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "step", step)
        stopped = ts.train(run.config, output=tmp_path / "run")
    assert stopped.facts.state == "interrupted"
    assert stopped.facts.stage == after // STEPS
    assert len(ts.evaluate(stopped.predictions())) == 22  # usable as it is
    resumed = ts.train(run.config, output=tmp_path / "run", resume=True)
    assert resumed.is_finished
    weights, expected = (load_file(r.directory / WEIGHTS) for r in (resumed, run))
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    assert [r["loss"] for r in resumed.metrics] == [r["loss"] for r in run.metrics]


@pytest.fixture(scope="module")
def data() -> LongTailedData:
    return ts.load_recipe("digits_lt").data.load(root=None, seed=0)


def _stages(
    config: ts.RunConfig, data: LongTailedData
) -> Iterator[tuple[Classifier, nn.Module, int]]:
    """Yield network, loss and number of batches per step of each stage that trains."""
    fabric = build_fabric(config)
    model = new_model(config, data)
    features = SplitFeatures(fabric, model, data, config)
    for number, stage in enumerate(config.method.stages()):
        if number > 0:
            previous = model.head
            place_head(model, config, number)
            model.head.begin(previous, features)
        if stage.epochs != 0:
            loss = build_loss(config, data.class_counts, stage)
            yield model.train(), loss, len(config.samplers(stage))


BATCHES = {
    "all_classes": torch.arange(12) % 10,
    "one_class": torch.full((8,), 9),
    "no_frequent_class": torch.tensor([7, 8, 9, 8, 7, 9, 9, 9]),
}


@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_method__loss_and_gradients_are_finite(
    name: str,
    batch: str,
    dtype: torch.dtype,
    data: LongTailedData,
) -> None:
    """Of every stage, also where classes are absent from the batch."""
    for model, loss, num_parts in _stages(_config(name), data):
        labels = BATCHES[batch].repeat(num_parts)
        images = torch.randn(len(labels), 1, 8, 8)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            value = loss(model(images), labels)
        assert value.shape == ()
        assert torch.isfinite(value)
        value.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert any(gradient.any() for gradient in gradients)
        model.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", METHODS.names())
def test_method__trains_in_bfloat16(name: str, tmp_path: Path) -> None:
    config = _config(name, "train.precision=bf16-mixed", "train.batch_size=276")
    run = ts.train(config, output=tmp_path / "run")  # one step a stage
    assert all(0 < record["loss"] < 100 for record in run.metrics)
    assert torch.isfinite(run.predictions().logits).all()
    weights = load_file(run.directory / WEIGHTS)
    assert all(torch.isfinite(value.float()).all() for value in weights.values())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "mislas"])
def test_method__takes_mixup(name: str, tmp_path: Path) -> None:
    run = ts.train(_config(name, "train.mixup=0.4"), output=tmp_path / "run")
    assert all(0 < record["loss"] < 100 for record in run.metrics)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "bbn"])
def test_method__takes_label_aware_smoothing(name: str, tmp_path: Path) -> None:
    config = _config(name, "train.label_smoothing=label_aware")
    run = ts.train(config, output=tmp_path / "run")
    assert all(0 < record["loss"] < 100 for record in run.metrics)


@pytest.mark.parametrize("name", METHODS.names())
def test_method__class_without_training_images(
    name: str, tmp_path: Path, data: LongTailedData
) -> None:
    keep = (data.train.labels != 3).nonzero().flatten()
    lacking = dataclasses.replace(data, train=data.train.subset(keep))
    with pytest.raises(ValueError, match="training image") as error:
        ts.train(_config(name), output=tmp_path / "run", data=lacking)
    assert str(error.value) == (
        "every class of digits_lt must have a training image, but 3 has none: no "
        "method can learn it. Leave the class out."
    )
