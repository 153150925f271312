"""OLTR: its second stage, its loss and the state that it keeps."""

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import tailshift as ts
from tailshift import priors
from tailshift.losses import centroid_loss, smoothed_loss
from tailshift.methods import OLTR, Stage
from tailshift.methods.oltr import OLTRLoss
from tailshift.models import LinearHead, MemoryHead, MemoryOutput
from tailshift.runs.files import WEIGHTS
from tailshift.runs.network import place_head
from tailshift.training.build import build_optimizer
from tailshift.training.progress import TrainingProgress
from tailshift.training.resolve import new_model

CONFIG = ("method.name=oltr", "train.epochs=2", "method.epochs=2")
STEPS = 5  # 276 images in batches of 64


def _output() -> MemoryOutput:
    return MemoryOutput(torch.randn(6, 4), torch.randn(6, 3), torch.randn(4, 3))


def test_oltr__trains_on_with_a_memory() -> None:
    first, second = OLTR(epochs=7, lr=0.3, backbone_lr=0.02).stages()
    assert isinstance(first.head(8, 3), LinearHead)
    assert first.samplers is None
    assert isinstance(second.head(8, 3), MemoryHead)
    assert (first.frozen, second.frozen) == (("backbone.attention",), ())
    assert OLTR(freeze_backbone=True).stages()[1].frozen == ("backbone.trunk",)
    assert second.samplers == ("class_balanced",)
    assert (second.epochs, second.lr, second.backbone_lr) == (7, 0.3, 0.02)
    assert OLTR().stages()[1].epochs is None


@pytest.mark.parametrize("weight", [0.0, 0.01, 0.5])
def test_oltr_loss__is_the_sum_of_its_parts(weight: float) -> None:
    output, labels = _output(), torch.tensor([0, 1, 2, 3, 0, 0])
    stage = OLTR(centroid_weight=weight).stages()[1]
    expected = F.cross_entropy(output.logits, labels) + weight * centroid_loss(
        output.features, labels, output.centroids
    )
    loss = stage.loss(torch.tensor([3, 1, 1, 1]))
    torch.testing.assert_close(loss(output, labels), expected)


def test_oltr_loss__can_be_smoothed() -> None:
    """With ε = 0 smoothing leaves the loss as it is; otherwise it adds to it."""
    output, labels, loss = _output(), torch.tensor([0, 1, 2, 3, 0, 0]), OLTRLoss(0.01)
    expected = loss(output, labels)
    same = smoothed_loss(loss, output, labels, torch.zeros(4))  # type: ignore[arg-type] # what the head gives
    torch.testing.assert_close(same, expected)
    other = smoothed_loss(loss, output, labels, torch.full((4,), 0.3))  # type: ignore[arg-type] # what the head gives
    mean_loss = -F.log_softmax(output.logits, 1)
    own = mean_loss.gather(1, labels[:, None])[:, 0]
    more = 0.3 * ((mean_loss.sum(1) - own) / 3 - own).mean()
    torch.testing.assert_close(other, expected + more)


def test_oltr__carries_the_samplers_prior() -> None:
    config = ts.load_recipe("digits_lt", CONFIG)
    counts = torch.tensor([50, 20, 5, 1])
    torch.testing.assert_close(config.logit_prior(counts), priors.uniform(4))


def test_build_optimizer__the_backbone_has_a_rate_of_its_own() -> None:
    config = ts.load_recipe("digits_lt", [*CONFIG, "optim.lr=0.4"])
    model = new_model(config, config.data.load(root=None, seed=0))

    def rates(stage: Stage, **optim: float) -> list[float]:
        changed = config.optim.model_copy(update=optim)
        given = config.model_copy(update={"optim": changed})
        groups = build_optimizer(given, model, stage).param_groups
        return [group["highest_lr"] for group in groups]

    first, second = config.method.stages()
    assert rates(first) == [0.4, 0.4]
    assert rates(first, backbone_lr=0.1) == [0.1, 0.4]
    place_head(model, config, 1)
    assert rates(second) == [0.01, 0.1, 0.01]  # the last the centroids'
    assert rates(second, backbone_lr=0.1) == [0.01, 0.1, 0.01]  # the stage's go first


def test_oltr__centroids_take_a_step_of_their_own() -> None:
    """Their rate times the rule and the hinge's share of the loss, and no decay."""
    settings = ("method.centroid_lr=0.5", "optim.weight_decay=0.1")
    config = ts.load_recipe("digits_lt", [*CONFIG, *settings, "optim.nesterov=false"])
    model = new_model(config, config.data.load(root=None, seed=0))
    place_head(model, config, 1)
    head, stage = model.double().head, config.method.stages()[1]
    assert isinstance(head, MemoryHead)
    for weights in (head.centroids, model.backbone.get_parameter("layer.weight")):
        torch.nn.init.normal_(weights, std=0.01)  # near enough for the hinge
    before = head.centroids.detach().clone().requires_grad_()
    labels = torch.tensor([0, 0, 3, 9])
    output = model(torch.randn(4, 1, 8, 8, dtype=torch.float64))
    optimizer = build_optimizer(config, model, stage)
    for group in optimizer.param_groups:
        group["lr"] = group["highest_lr"]
    stage.loss(torch.ones(10))(output, labels).backward()
    optimizer.step()
    x = output.features.detach()
    expected = before.detach().clone()
    for c in range(10):
        own = x[labels == c]
        expected[c] -= 0.5 * (before[c].detach() - own).sum(0) / (1 + len(own)) / 4
    squared = (x[:, None] - before).square().sum(2)  # (4, 10)
    others = squared.masked_fill(torch.eye(10)[labels].bool(), 0).sum() / 40
    assert others < 10
    (0.01 * 0.01 * (10 - others)).backward()
    assert before.grad is not None
    torch.testing.assert_close(head.centroids.detach(), expected - 0.5 * before.grad)


def _train(
    monkeypatch: pytest.MonkeyPatch,
    output: Path,
    stop_after: int,
    settings: tuple[str, ...] = (),
) -> ts.Run:
    left = itertools.count(stop_after - 1, -1)

    def step(*args: Any) -> None:
        if next(left) == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingProgress, "step", step)
    config = ts.load_recipe("digits_lt", [*CONFIG, *settings])
    return ts.train(config, output=output, resume=output.is_dir())


@pytest.mark.parametrize("after", [2 * STEPS, 2 * STEPS + 2, 3 * STEPS])
def test_oltr__resumed_in_its_second_stage_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Also where it stopped between the stages, and within an epoch of the second."""
    whole = _train(monkeypatch, tmp_path / "whole", stop_after=0)
    part = _train(monkeypatch, tmp_path / "part", stop_after=after)
    assert not part.is_finished
    resumed = _train(monkeypatch, tmp_path / "part", stop_after=0)
    weights = load_file(resumed.directory / WEIGHTS)
    expected = load_file(whole.directory / WEIGHTS)
    assert weights.keys() == expected.keys()
    assert "head.centroids" in weights
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    logits = resumed.predictions().logits
    assert torch.equal(logits, whole.predictions().logits)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_oltr__what_each_stage_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_frozen: bool
) -> None:
    """Attention adds nothing in the first; the second may leave the trunk alone."""
    more = (f"method.freeze_backbone={str(is_frozen).lower()}",)
    in_first, begun, last = (  # the second after a step of the second stage
        load_file(
            _train(monkeypatch, tmp_path / "run", after, more).directory / WEIGHTS
        )
        for after in (2 * STEPS - 1, 2, 0)
    )
    assert not in_first["backbone.attention.back.weight"].any()
    for name, value in begun.items():
        if name.startswith(("backbone.attention.", "backbone.layer.")):
            assert not torch.equal(last[name], value), name
        elif name.startswith("backbone.trunk."):
            assert torch.equal(last[name], value) == is_frozen, name


def test_oltr__does_not_start_from_softmax(tmp_path: Path) -> None:
    softmax = ts.load_recipe("digits_lt", ["method.name=softmax", "train.epochs=1"])
    first = ts.train(softmax, output=tmp_path / "first")
    config = ts.load_recipe(
        "digits_lt", [*CONFIG, f"train.start_from={first.directory}"]
    )
    with pytest.raises(ValueError, match="another network") as error:
        ts.train(config, output=tmp_path / "run")
    assert str(error.value) == (
        f"{first.directory / WEIGHTS} holds the weights of another network than the "
        "recipe names."
    )
