"""Runs repeat, and an interrupted run ends as if it had not been."""

import contextlib
import itertools
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import tailshift as ts
from tailshift.processes import Processes
from tailshift.runs.checkpoint import read_position
from tailshift.runs.directory import NotFiniteError
from tailshift.runs.files import WEIGHTS
from tailshift.training.loop import (
    Trainer,
    TrainingPosition,
    WeightAverage,
    detect_anomalies,
)
from tailshift.training.progress import TrainingProgress
from tailshift.training.step import DividedStep

EPOCHS, STEPS = 3, 5  # 276 images in batches of 64
CONFIG = (f"train.epochs={EPOCHS}", "method.name=lade", "method.alpha=0.1")


def _ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def _crash() -> None:
    raise RuntimeError("power cut")


def _train(
    monkeypatch: pytest.MonkeyPatch,
    output: Path,
    *overrides: str,
    after: int = 0,
    then: Callable[[], None] = lambda: None,
    resume: bool = False,
) -> ts.Run:
    """Train; after so many steps, as the progress bar is told of them, do ``then``."""
    left = itertools.count(after - 1, -1)

    def step(*args: Any) -> None:
        if next(left) == 0:
            then()

    monkeypatch.setattr(TrainingProgress, "step", step)
    config = ts.load_recipe("digits_lt", [*CONFIG, *overrides])
    return ts.train(config, output=output, resume=resume)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ts.Run:
    config = ts.load_recipe("digits_lt", CONFIG)
    return ts.train(config, output=tmp_path_factory.mktemp("loop") / "whole")


def _without_times(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    times = ("seconds", "processor_seconds", "images_per_second")
    return [{k: v for k, v in line.items() if k not in times} for line in metrics]


def _assert_same(run: ts.Run, reference: ts.Run) -> None:
    weights = load_file(run.directory / WEIGHTS)
    expected = load_file(reference.directory / WEIGHTS)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    assert _without_times(run.metrics) == _without_times(reference.metrics)
    for split in ("val", "test"):
        logits = run.predictions(split).logits
        assert torch.equal(logits, reference.predictions(split).logits)
    assert run.facts == reference.facts


def test_train__learns(reference: ts.Run) -> None:
    losses = [record["loss"] for record in reference.metrics]
    assert losses[-1] < losses[0]
    assert reference.metrics[0]["lr"] == pytest.approx(0.05, rel=0.05)


def test_train__repeats_bit_for_bit(
    reference: ts.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.rand(17)  # what was drawn before must not matter
    _assert_same(_train(monkeypatch, tmp_path / "again"), reference)


def test_train__another_seed_differs(reference: ts.Run, tmp_path: Path) -> None:
    config = ts.load_recipe("digits_lt", [*CONFIG, "seed=1"])
    run = ts.train(config, output=tmp_path / "other")
    assert not torch.equal(run.predictions().logits, reference.predictions().logits)


@pytest.mark.parametrize("after", [1, 3, STEPS, STEPS + 1, 2 * STEPS, 3 * STEPS - 1])
def test_train__interrupted_and_resumed_is_the_same(
    reference: ts.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Before the first checkpoint, within an epoch and at an epoch's last step."""
    run = _train(monkeypatch, tmp_path / "run", after=after, then=_ctrl_c)
    assert run.facts.state == "interrupted"
    assert run.facts.epochs_done == after // STEPS == len(run.metrics)
    assert len(ts.evaluate(run.predictions())) == 22  # usable as it is
    _assert_same(_train(monkeypatch, tmp_path / "run", resume=True), reference)


def test_train__interrupted_at_the_last_step_is_finished(
    reference: ts.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = EPOCHS * STEPS
    with pytest.raises(KeyboardInterrupt):  # the command ends, but the run is whole
        _train(monkeypatch, tmp_path / "run", after=steps, then=_ctrl_c)
    _assert_same(ts.load_run(tmp_path / "run"), reference)


def test_train__interrupted_again_and_again(
    reference: ts.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "run"
    run = _train(monkeypatch, output, after=4, then=_ctrl_c)
    for _ in range(2):
        run = _train(monkeypatch, output, after=4, then=_ctrl_c, resume=True)
        assert not run.is_finished
    _assert_same(_train(monkeypatch, output, resume=True), reference)


@pytest.mark.parametrize(("every", "after"), [(1, 8), (2, 12), (2, 7)])
def test_train__killed_and_resumed_is_the_same(
    reference: ts.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    after: int,
) -> None:
    """Nothing is saved on the way out; what the metrics say too much is cut."""
    output, setting = tmp_path / "run", f"train.checkpoint_every={every}"
    with pytest.raises(RuntimeError, match="power cut"):
        _train(monkeypatch, output, setting, after=after, then=_crash)
    with (output / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 9, "lo')
    assert ts.load_run(output).facts.state == "running"
    run = _train(monkeypatch, output, setting, resume=True)
    _assert_same(run, reference)


@pytest.mark.parametrize("content", ["", '{"epoch": 1, "lo', '{"epoch": 1}\n'])
def test_train__damaged_metrics_are_those_of_the_checkpoint(
    reference: ts.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """Epochs were missing; the best one would have been chosen among the others."""
    _train(monkeypatch, tmp_path, after=2 * STEPS + 1, then=_ctrl_c)
    (tmp_path / "metrics.jsonl").write_text(content)
    _assert_same(_train(monkeypatch, tmp_path, resume=True), reference)


def test_train__resuming_a_finished_run_changes_nothing(
    reference: ts.Run, run_copy: Path, digits_run: ts.Run
) -> None:
    _assert_same(ts.train(digits_run.config, output=run_copy, resume=True), digits_run)


def test_train__resume_without_a_run_begins_one(
    reference: ts.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _train(monkeypatch, tmp_path / "new", resume=True)
    _assert_same(run, reference)


def test_train__damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _train(monkeypatch, tmp_path, after=1, then=_ctrl_c)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-5] + b"01234")
    with pytest.raises(ValueError, match="checksum") as error:
        _train(monkeypatch, tmp_path, resume=True)
    assert str(error.value) == (
        f"{path} is not a whole checkpoint (its checksum does not fit its content). "
        "Put it back from a copy, or remove the run's folder to start it again."
    )


def test_train__loss_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After seven steps the weights are NaN, so the eighth (step 7 from 0) fails."""
    set_learning_rate, check_finite = Trainer.set_learning_rate, Trainer.check_finite
    seen = []

    def break_weights(trainer: Trainer) -> float:
        if trainer.step == 7:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(torch.nan)
        return set_learning_rate(trainer)

    def see(trainer: Trainer, loss: float) -> None:
        seen.append(trainer.sample_ids.tolist())
        check_finite(trainer, loss)

    monkeypatch.setattr(Trainer, "set_learning_rate", break_weights)
    monkeypatch.setattr(Trainer, "check_finite", see)
    config = ts.load_recipe("digits_lt", CONFIG)
    with pytest.raises(FloatingPointError) as error:
        ts.train(config, output=tmp_path / "run")
    ids, output = seen[7], tmp_path / "run"
    assert str(error.value) == (
        f"the loss is nan at step 7 (epoch 2, samples "
        f"{', '.join(map(str, ids[:8]))} …). Train again with a lower optim.lr. All of "
        f"the batch's sample ids are in {output / 'failure.json'}. The last good "
        f"checkpoint is {output / 'checkpoint.safetensors'} (after 1 epochs and "
        f"0 steps); `tailshift train --resume --output {output} --detect-anomaly` "
        "resumes from it and names the operation that fails."
    )
    assert json.loads((output / "failure.json").read_text())["sample_ids"] == ids
    monkeypatch.setattr(Trainer, "set_learning_rate", set_learning_rate)
    assert ts.train(config, output=output, resume=True).is_finished
    assert not (output / "failure.json").exists()


@pytest.mark.parametrize("after", [3, STEPS, 2 * STEPS + 4])
def test_train__preempted_and_resumed_is_the_same(
    reference: ts.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """SIGTERM leaves little time: a checkpoint is saved, nothing is evaluated."""

    def terminate() -> None:
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        _train(monkeypatch, tmp_path / "run", after=after, then=terminate)
    assert end.value.code == 75
    assert ts.load_run(tmp_path / "run").facts.state == "interrupted"
    assert not (tmp_path / "run" / "predictions").exists()
    _assert_same(_train(monkeypatch, tmp_path / "run", resume=True), reference)


@pytest.mark.parametrize(
    ("setting", "batch"),
    [("train.checkpoint_steps=2", 2), ("train.checkpoint_minutes=1e-9", 3)],
)
def test_train__checkpoints_within_an_epoch(
    reference: ts.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    batch: int,
) -> None:
    """The fourth step of the second epoch never ends; the third one's state is kept."""
    output = tmp_path / "run"
    with pytest.raises(RuntimeError, match="power cut"):
        _train(monkeypatch, output, setting, after=STEPS + 4, then=_crash)
    position = read_position(output / "checkpoint.safetensors")
    assert (position.epoch, position.batch) == (1, batch)
    _assert_same(_train(monkeypatch, output, setting, resume=True), reference)


@pytest.mark.parametrize("method", ["lade", "bbn", "sade", "oltr"])
def test_fit__divided_step_of_one_piece_is_the_step_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Logits alone, stacked batches, experts and a memory: the same to the last bit."""
    config = ts.load_recipe("digits_lt", ["train.epochs=2", f"method.name={method}"])
    whole = ts.train(config, output=tmp_path / "whole")
    steps: list[DividedStep] = []

    def divided(
        config: ts.RunConfig, model: nn.Module, loss: nn.Module, fabric: Any, stage: Any
    ) -> DividedStep:
        num_parts = len(config.samplers(stage))
        step = DividedStep(fabric, model, loss, Processes(), num_parts=num_parts)
        steps.append(step)
        return step

    monkeypatch.setattr("tailshift.training.build.divided_step", divided)
    _assert_same(ts.train(config, output=tmp_path / "divided"), whole)
    assert len(steps) == len(config.method.stages())


class _OwnLoss(nn.Module):
    """A loss that somebody wrote without our base, with a schedule of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[tuple[int, int]] = []

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        self.epochs.append((epoch, num_epochs))

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, labels)


@pytest.mark.parametrize(
    "settings", [[], ["train.mixup=0.2"], ["train.accumulate=2"]], ids=str
)
def test_train__loss_of_another_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str]
) -> None:
    config = ts.load_recipe(
        "digits_lt", ["train.epochs=2", "method.name=softmax", *settings]
    )
    expected = ts.train(config, output=tmp_path / "expected")
    own = _OwnLoss()
    monkeypatch.setattr(type(config.method), "build_loss", lambda *_: own)
    _assert_same(ts.train(config, output=tmp_path / "own"), expected)
    assert own.epochs == [(0, 2), (1, 2)]


def test_weight_average__equals_a_loop_in_float64() -> None:
    """Weights and batch statistics are averaged, counts are copied."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = WeightAverage(model, 0.9)
    expected = {k: v.double() for k, v in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for t in range(200):
        model(torch.randn(8, 3)).sigmoid().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(t)
        kept = min(0.9, (1 + t) / (10 + t))  # 0.1 at first, 0.9 from t = 80
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value = kept * expected[name] + (1 - kept) * value.double()
            expected[name] = value
    for name, value in average.model.state_dict().items():
        torch.testing.assert_close(
            value, expected[name], rtol=1e-5, atol=1e-6, check_dtype=False
        )
    assert average.model.state_dict()["1.num_batches_tracked"] == 200
    assert not any(p.requires_grad for p in average.model.parameters())


EMA = "train.ema=0.8"


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> ts.Run:
    config = ts.load_recipe("digits_lt", [*CONFIG, EMA])
    return ts.train(config, output=tmp_path_factory.mktemp("loop") / "averaged")


def test_train__saves_and_validates_the_average(
    reference: ts.Run, averaged: ts.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is that of the weights of all steps, whose course it does not change."""
    steps: list[dict[str, Tensor]] = []
    update = WeightAverage.update

    def watched(self: WeightAverage, step: int) -> None:
        assert step == len(steps) - 1
        steps.append({k: v.clone() for k, v in self._source.state_dict().items()})
        update(self, step)

    begin = Trainer.begin_epoch

    def begun(self: Trainer) -> None:
        if not steps:
            state = self.model.state_dict()
            steps.append({k: v.clone() for k, v in state.items()})
        begin(self)

    monkeypatch.setattr(WeightAverage, "update", watched)
    monkeypatch.setattr(Trainer, "begin_epoch", begun)
    _assert_same(_train(monkeypatch, tmp_path / "run", EMA), averaged)
    losses = [record["loss"] for record in averaged.metrics]
    assert losses == [record["loss"] for record in reference.metrics]
    last = load_file(reference.directory / WEIGHTS)
    saved = load_file(averaged.directory / WEIGHTS)
    for name, value in saved.items():
        assert torch.equal(steps[-1][name], last[name])
        expected = steps[0][name].double()
        for t, weights in enumerate(steps[1:]):
            kept = min(0.8, (1 + t) / (10 + t))
            expected = kept * expected + (1 - kept) * weights[name].double()
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-6)
    val = averaged.predictions("val")
    accuracy = ts.metrics.accuracy(val.logits, val.labels)
    assert averaged.metrics[-1]["val_accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize(("then", "after"), [(_ctrl_c, 3), (_crash, 8)])
def test_train__average_resumes_bit_for_bit(
    averaged: ts.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[], None],
    after: int,
) -> None:
    output, settings = tmp_path / "run", (EMA, "train.checkpoint_steps=2")
    with contextlib.suppress(RuntimeError):
        _train(monkeypatch, output, *settings, after=after, then=then)
    assert not ts.load_run(output).is_finished
    _assert_same(_train(monkeypatch, output, *settings, resume=True), averaged)


def test_train__keeps_the_average_of_the_best_epoch(
    averaged: ts.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the last epoch is the best one, nothing differs."""
    scores = iter([0.1, 0.2, 0.3, 0.5, 0.2, 0.1])

    def validate(*args: object) -> dict[str, float]:
        return {"val_balanced_accuracy": next(scores)}

    monkeypatch.setattr("tailshift.training.recorder.validate", validate)
    settings = (EMA, "train.keep=best")
    last = _train(monkeypatch, tmp_path / "last", *settings)
    assert torch.equal(last.predictions().logits, averaged.predictions().logits)
    first = _train(monkeypatch, tmp_path / "first", *settings)
    assert first.facts.kept_epoch == 1
    assert not torch.equal(first.predictions().logits, averaged.predictions().logits)


def test_train__a_second_stage_begins_with_the_average(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its backbone is the average of a first stage alone, also if it was resumed."""
    settings = [f"train.epochs={EPOCHS}", EMA]
    config = ts.load_recipe("digits_lt", settings)
    softmax = ts.train(config, output=tmp_path / "softmax")
    config = ts.load_recipe("digits_lt", [*settings, "method.name=crt"])
    left = itertools.count(EPOCHS * STEPS - 2, -1)
    monkeypatch.setattr(TrainingProgress, "step", lambda *_: next(left) or _ctrl_c())
    crt = ts.train(config, output=tmp_path / "crt")
    assert (crt.facts.stage, crt.facts.state) == (0, "interrupted")
    crt = ts.train(config, output=tmp_path / "crt", resume=True)
    assert crt.is_finished
    trunk = softmax.model.backbone.state_dict()
    for name, value in crt.model.backbone.state_dict().items():
        assert torch.equal(value, trunk[name])


class _Root(nn.Module):
    """√x: at 0 the value is finite and the gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0).sqrt()


PLACE = TrainingPosition(4, 1, [5])


def test_not_finite__names_few_samples_and_keeps_all() -> None:
    error = NotFiniteError("the loss is inf", TrainingPosition(12, 3, range(9)))
    assert str(error) == (
        "the loss is inf at step 12 (epoch 3, samples 0, 1, 2, 3, 4, 5, 6, 7 …). "
        "Train again with a lower optim.lr."
    )
    assert error.place.sample_ids == range(9)


def test_detecting_anomalies__names_the_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))
    with torch.no_grad():
        model[1][1].weight.fill_(torch.nan)

    def train() -> None:
        with detect_anomalies(model, lambda: PLACE):
            loss = model(torch.ones(3, 2)).sum()
            raise NotFiniteError(f"the loss is {loss.item()}", PLACE)

    with pytest.raises(NotFiniteError) as error:
        train()
    assert str(error.value) == (
        "the loss is nan at step 4 (epoch 1, samples 5). Train again with a lower "
        "optim.lr. The first non-finite value came from `1.1` (Linear)."
    )
    assert not any(module._forward_hooks for module in model.modules())
    assert not torch.is_anomaly_enabled()


def test_detecting_anomalies__names_the_operation_of_a_gradient() -> None:
    model = nn.Sequential(nn.Linear(2, 2), _Root())

    def train() -> None:
        with detect_anomalies(model, lambda: PLACE):
            model(torch.ones(3, 2)).sum().backward()

    with (
        pytest.warns(UserWarning, match="Traceback of forward call"),
        pytest.raises(NotFiniteError) as error,
    ):
        train()
    assert re.fullmatch(
        r"a gradient is nan at step 4 \(epoch 1, samples 5\): Function 'MulBackward0' "
        r"returned nan values in its 0th output\. Train again with a lower optim\.lr\.",
        str(error.value),
    )


def test_detecting_anomalies__leaves_other_errors() -> None:
    with (
        pytest.raises(RuntimeError, match="power cut"),
        detect_anomalies(nn.Linear(1, 1), lambda: PLACE),
    ):
        raise RuntimeError("power cut")
