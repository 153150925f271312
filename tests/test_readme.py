"""The README is short, and its programs and commands run."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import tailshift as ts

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
SKLEARN, TORCH = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_readme__fits_on_three_screens() -> None:
    assert len(TEXT.splitlines()) <= 120
    headings = re.findall(r"^## (.*)$", TEXT, flags=re.MULTILINE)
    assert headings == [
        "Install",
        "Quick start",
        "What you can do",
        "How it works",
        "Does it reproduce the paper?",
        "When not to use it",
        "Contributing and citing",
    ]


@pytest.mark.filterwarnings("ignore")  # the digits are not scaled: lbfgs stops early
def test_readme__scikit_learn() -> None:
    x, y = load_digits(return_X_y=True)
    train, new = slice(1000), np.flatnonzero((np.arange(len(y)) >= 1000) & (y > 4))
    names: dict[str, Any] = {"X": x[train], "y": y[train], "X_new": x[new]}
    exec(compile(SKLEARN, "README.md", "exec"), names)
    accuracy = {
        name: np.mean(names[name] == y[new]) for name in ("y_uniform", "y_adapted")
    }
    assert accuracy["y_adapted"] >= accuracy["y_uniform"] > 0.85


def test_readme__pytorch() -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 3)
    names: dict[str, Any] = {"ts": ts, "network": network, "x": torch.randn(5, 4)}
    names["class_counts"] = [700, 200, 100]
    exec(compile(TORCH, "README.md", "exec"), names)
    assert torch.allclose(names["probs"].sum(-1), torch.ones(5))
    assert names["model"].target_prior.tolist() == pytest.approx([0.1, 0.2, 0.7])


@pytest.mark.filterwarnings("ignore::tailshift.estimators.FewSamplesWarning")
def test_readme__commands(
    tailshift: Callable[..., Any], write_image: Callable[..., Path]
) -> None:
    """On a few small pictures and one epoch."""
    for number in range(24):
        name = f"{number}.png"
        write_image(Path("photos") / "abc"[number % 3] / name, seed=number)
        write_image(Path("new_photos") / name, seed=number)
    commands = re.findall(r"^    (tailshift .*)$", TEXT, flags=re.MULTILINE)
    assert [shlex.split(command)[1] for command in commands] == [
        "train",
        "predict",
        "report",
    ]
    for command in commands:
        text = command
        if " train " in command:
            text += " --finetune --set train.epochs=1 --set train.num_workers=0"
        result = tailshift(*shlex.split(text)[1:])
        assert result.code == 0, result.err
    assert Path("predictions.csv").is_file()
    assert Path("report/report.html").is_file()
