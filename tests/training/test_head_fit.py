"""Heads fitted at once, against scikit-learn and naive float64 minimisations."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tailshift as ts
from tailshift.data import FeatureCache, FeatureSplit, LongTailedData
from tailshift.training.head_problem import HeadProblem

COUNTS = (60, 30, 15, 8)
DIM = 6


def _split(views: int = 1, seed: int = 0) -> FeatureSplit:
    """Return half-precision features of classes that overlap, (views, N, d)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    means = torch.randn(len(COUNTS), DIM, generator=torch.Generator().manual_seed(9))
    noise = torch.randn(views, len(labels), DIM, generator=generator)
    scales = torch.logspace(-1, 1, DIM)
    return FeatureSplit(((means[labels] + noise) * scales + 3).half(), labels)


def _bank(folder: Path, test_seed: int = 1) -> LongTailedData:
    pairs = [
        (split.features[0].numpy(), split.labels.numpy())
        for split in (_split(), _split(seed=test_seed))
    ]
    return FeatureCache.from_arrays(folder, train=pairs[0], test=pairs[1]).data()


def _train(
    data: LongTailedData, output: Path, method: str, *more: str, **how: Any
) -> ts.Run:
    settings = ("model.frozen=true", "optim.name=lbfgs", "optim.weight_decay=auto")
    settings += ("optim.lr=0.1", "train.epochs=1", "train.batch_size=64")
    config = ts.load_recipe(
        "digits_lt", ["model.name=features", f"method.name={method}", *settings, *more]
    )
    return ts.train(config, output=output, data=data, **how)


def _head(run: ts.Run) -> dict[str, Tensor]:
    return run.model.head.state_dict()


def test_fit__never_looks_at_test_samples(tmp_path: Path) -> None:
    runs = [
        _train(_bank(tmp_path / f"bank{n}", test_seed=n), tmp_path / f"run{n}", "lade")
        for n in (1, 2)
    ]
    first, second = map(_head, runs)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(*(run.predictions().logits for run in runs))


@pytest.mark.parametrize("at", [1, 3])
def test_fit__resumed_ends_as_if_never_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: int
) -> None:
    data = _bank(tmp_path / "bank")
    whole = _train(data, tmp_path / "whole", "balanced_softmax")
    solve, calls = HeadProblem.solve, []

    def interrupted(problem: HeadProblem, decay: float, max_steps: int) -> float:
        calls.append(decay)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return solve(problem, decay, max_steps)

    with monkeypatch.context() as patch:
        patch.setattr(HeadProblem, "solve", interrupted)
        part = _train(data, tmp_path / "part", "balanced_softmax")
    assert not part.is_finished
    resumed = _train(data, tmp_path / "part", "balanced_softmax", resume=True)
    assert resumed.is_finished
    expected, found = _head(whole), _head(resumed)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_fit__a_head_behind_an_adapter_is_trained_by_the_loop(tmp_path: Path) -> None:
    """L-BFGS reads features as they are, which such a head never sees."""
    more = ("model.adapter=residual", "train.epochs=5")
    run = _train(_bank(tmp_path / "bank"), tmp_path / "run", "softmax", *more)
    losses = [row["loss"] for row in run.metrics]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def test_train__lws_keeps_the_first_stage(tmp_path: Path) -> None:
    """Only one factor for each class is learnt in the second one, on features too."""
    data = _bank(tmp_path / "bank")
    first = _train(data, tmp_path / "first", "softmax").model.head
    both = _train(data, tmp_path / "both", "lws").model.head
    assert torch.equal(both.linear.weight, first.weight)
    assert torch.equal(both.linear.bias, first.bias)
    assert not torch.equal(both.scales, torch.ones_like(both.scales))
