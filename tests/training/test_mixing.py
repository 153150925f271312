"""Mixup and label-aware smoothing in training."""

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tailshift as ts
from tailshift.config import ConfigError
from tailshift.losses import LabelAwareSmoothing, cross_entropy_loss
from tailshift.runs.files import WEIGHTS
from tailshift.training.build import build_loss
from tailshift.training.progress import TrainingProgress
from tailshift.training.step import mix

TinyConfig = Callable[..., ts.RunConfig]


def _same_weights(a: ts.Run, b: ts.Run) -> bool:
    ours, theirs = (load_file(run.directory / WEIGHTS) for run in (a, b))
    return all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_mix__blends_images_and_weighs_both_labels() -> None:
    images, labels = torch.randn(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    mixed = mix(images, labels, 0.8)
    assert mixed.other_labels is not None
    assert 0 < mixed.share < 1
    partners = [
        j
        for i in range(6)
        for j in range(6)
        if torch.allclose(
            mixed.images[i],
            mixed.share * images[i] + (1 - mixed.share) * images[j],
            atol=1e-6,
        )
    ]
    assert sorted(partners) == list(range(6))
    assert torch.equal(mixed.other_labels, labels[partners])
    logits = torch.randn(6, 3)
    expected = mixed.share * cross_entropy_loss(logits, labels)
    expected += (1 - mixed.share) * cross_entropy_loss(logits, mixed.other_labels)
    torch.testing.assert_close(mixed.loss(cross_entropy_loss, logits), expected)


def test_mix__alpha_0_changes_nothing_and_draws_nothing() -> None:
    state = torch.get_rng_state()
    images, labels = torch.ones(4, 1), torch.tensor([0, 1, 0, 1])
    mixed = mix(images, labels, 0.0)
    assert mixed.images is images
    assert torch.equal(torch.get_rng_state(), state)
    logits = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    loss = mixed.loss(cross_entropy_loss, logits)
    assert torch.equal(loss, cross_entropy_loss(logits, labels))


@pytest.mark.parametrize("alpha", [0.1, 1.0, 50.0])
def test_mix__share_is_of_a_beta_distribution(alpha: float) -> None:
    """Mean ½ and variance 1 / (4 (2α + 1))."""
    images, labels = torch.ones(2, 1), torch.tensor([0, 1])
    shares = torch.tensor([mix(images, labels, alpha).share for _ in range(1000)])
    assert torch.isfinite(shares).all()
    assert shares.mean().item() == pytest.approx(0.5, abs=0.06)
    assert shares.var().item() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.2)


def test_mix__stays_within_the_parts_of_a_stack() -> None:
    labels = torch.cat([torch.zeros(20), torch.ones(20)]).long()
    mixed = mix(torch.rand(40, 1), labels, 1.0, num_parts=2)
    assert mixed.other_labels is not None
    assert torch.equal(mixed.other_labels, labels)


def test_mixup__0_is_no_mixup_bit_for_bit(
    tmp_path: Path, tiny_config: TinyConfig, digits_run: ts.Run
) -> None:
    config = tiny_config("method.name=lade", "train.mixup=0")
    run = ts.train(config, output=tmp_path / "run")
    assert _same_weights(run, digits_run)
    mixed = tiny_config("method.name=lade", "train.mixup=0.4")
    assert not _same_weights(ts.train(mixed, output=tmp_path / "mixed"), digits_run)


@pytest.mark.parametrize("after", [2, 7])
def test_mixup__interrupted_and_resumed_is_the_same(
    after: int,
    tmp_path: Path,
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shares and partners that are still to come are drawn as if in one go."""
    config = tiny_config("train.mixup=0.4", "train.label_smoothing=label_aware")
    whole = ts.train(config, output=tmp_path / "whole")
    left = itertools.count(after - 1, -1)

    def step(*args: Any) -> None:
        if next(left) == 0:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "step", step)
        assert not ts.train(config, output=tmp_path / "run").is_finished
    torch.rand(5)  # what another program draws in between must not matter
    run = ts.train(config, output=tmp_path / "run", resume=True)
    assert _same_weights(run, whole)
    assert [r["loss"] for r in run.metrics] == [r["loss"] for r in whole.metrics]


def test_label_smoothing__goes_by_the_images_there_are(
    tiny_config: TinyConfig,
) -> None:
    """Also where a sampler serves all classes alike: frequent ones are over-sure."""
    config = tiny_config("method.name=crt", "train.label_smoothing=label_aware")
    data = config.data.load(root=None, seed=0)
    for stage in config.method.stages():
        loss = build_loss(config, data.class_counts, stage)
        assert isinstance(loss, LabelAwareSmoothing)
        assert loss.factors[[0, -1]].tolist() == pytest.approx([0.4, 0.1])


def test_label_smoothing__refused_where_the_loss_takes_no_soft_labels(
    tiny_config: TinyConfig,
) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_config("method.name=bbn", "train.label_smoothing=label_aware")
    assert str(error.value) == (
        "`train.label_smoothing` must be 'none', since the loss of bbn does not take "
        "soft labels, but is 'label_aware'."
    )


@pytest.mark.parametrize(
    ("method", "own"),
    [("bbn", "instance, reverse"), ("resampled_softmax", "class_balanced")],
)
def test_sampler__refused_where_the_method_has_its_own(
    method: str, own: str, tiny_config: TinyConfig
) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_config(f"method.name={method}", "train.sampler=square_root")
    assert str(error.value) == (
        f"`train.sampler` must not be set, since {method} has its own ({own}), but is "
        "'square_root'."
    )
    config = tiny_config("method.name=crt", "train.sampler=square_root")
    first, second = config.method.stages()
    assert config.samplers(first) == ("square_root",)  # there it has an effect
    assert config.samplers(second) == ("class_balanced",)
