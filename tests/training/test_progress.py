"""What training tells: a plan, a bar on a terminal, a line an epoch elsewhere."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

import tailshift as ts
from tailshift.training.progress import epoch_line, plan_lines, training_progress


def _shown(title: str, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None)
    with training_progress(title, 10, done=3, console=console) as progress:
        progress.step(0.51234, seconds=0.5, images=64)
    return file.getvalue()


def test_training_progress__says_how_far_how_well_and_how_fast() -> None:
    shown = _shown("digits_lt · LADE · seed 0", terminal=True)
    for part in ("digits_lt · LADE · seed 0", "4/10", "loss 0.512", "128 images/s"):
        assert part in shown


def test_training_progress__is_silent_elsewhere() -> None:
    assert _shown("digits_lt", terminal=False) == ""


def test_training_progress__goes_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with training_progress("digits_lt", 10) as progress:
        progress.step(0.5, seconds=0.0, images=64)
    assert capsys.readouterr() == ("", "")


def test_training_progress__shows_a_title_as_it_is() -> None:
    assert "my [/recipe] {x}" in _shown("my [/recipe] {x}", terminal=True)


def test_training_progress__spells_control_characters_out() -> None:
    shown = _shown("my\x1b[31m\x9b5m recipe", terminal=True)
    assert "my\\x1b[31m\\x9b5m recipe" in shown
    assert "\x1b[31m" not in shown
    assert "\x9b" not in shown


def _told(*, terminal: bool, seconds: float) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=160, color_system=None)
    settings: Any = {"console": console, "is_verbose": True}
    with training_progress("digits_lt", 100, done=40, **settings) as progress:
        for step in range(20):
            progress.step(0.5, seconds=seconds if step else 60.0, images=64)
        progress.epoch(METRICS, 30)
    return file.getvalue()


METRICS = {
    "epoch": 3,
    "loss": 0.5123,
    "train_accuracy": 0.8,
    "seconds": 1.23,
    "val_accuracy": 0.7,
    "val_balanced_accuracy": 0.4,
    "val_accuracy_many": 0.9,
    "val_accuracy_few": 0.25,
}
LINE = "epoch 3/30: loss 0.512, train 80.0 %, val 70.0 % (many 90.0, few 25.0), 1.2 s"


def test_training_progress__a_line_an_epoch_for_logs() -> None:
    """The time is told once, after ten steps, or one of five seconds; not the first."""
    assert epoch_line(METRICS, 30) == LINE
    assert _told(terminal=False, seconds=0.1) == (
        f"about 5 s left for 49 steps\n{LINE}\n"
    )
    assert _told(terminal=False, seconds=10.0) == (
        f"about 9 min 40 s left for 58 steps\n{LINE}\n"
    )


def test_training_progress__a_terminal_has_the_bar_instead() -> None:
    shown = _told(terminal=True, seconds=0.1)
    assert "about 5 s left for 49 steps" in shown
    assert "val 70.0 % (many 90.0, few 25.0)" in shown
    assert "epoch 3/30" not in shown


def test_train__says_what_it_does(tailshift: Callable[..., Any]) -> None:
    command = ("train", "digits_lt", "--set", "train.epochs=1", "--output", "run")
    result = tailshift(*command, "--method", "softmax")
    *plan, epoch = result.err.splitlines()
    assert plan == [
        "data: digits_lt, 10 classes, 276 training, 55 validation, 500 test images",
        "images: 8 × 8 pixels; in training shifted by up to 1 pixels",
        "network: digits_net, random weights",
        "method: Softmax, 1 epochs, 64 images per step",
    ]
    assert epoch == epoch_line(ts.load_run("run").metrics[0], 1)
    assert result.out.splitlines()[-1] == "run"
    resumed = tailshift("train", "--resume", "--output", "run")
    assert resumed.err.splitlines()[2:] == [
        "network: digits_net, weights from the checkpoint",
        "method: Softmax, 1 epochs, 64 images per step",
    ]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ([], "network: digits_net, random weights"),
        (
            ["train.precision=bf16-mixed"],
            "network: digits_net, random weights, in bf16-mixed",
        ),
        (["model.weights=a.safe"], "network: digits_net, weights from a.safe"),
        (
            ["model.name=timm:resnet18", "model.pretrained=true"],
            "network: timm:resnet18, published weights",
        ),
        (
            ["model.name=timm:resnet18", "model.pretrained=if_available"],
            "network: timm:resnet18, published weights, if they can be had",
        ),
        (
            ["method.name=crt", "train.start_from=run"],
            "network: digits_net, weights from run",
        ),
    ],
)
def test_plan_lines__where_the_weights_come_from(
    tiny_config: Callable[..., ts.RunConfig], settings: list[str], line: str
) -> None:
    config = tiny_config(*settings)
    data = dataclasses.replace(config.data.load(root=None, seed=0), val=None)
    lines = plan_lines(config, data)
    assert lines[2] == line
    assert "276 training, 0 validation, 500 test images" in lines[0]


def test_train__is_silent_unless_asked(
    tiny_config: Callable[..., ts.RunConfig],
    tmp_path: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ts.train(tiny_config("train.epochs=1"), output=tmp_path / "run")
    assert capfd.readouterr() == ("", "")
