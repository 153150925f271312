"""SADE: its experts, its loss and the prior of its mean."""

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tailshift as ts
from tailshift import priors
from tailshift.losses import sade_loss, sade_priors
from tailshift.methods import SADE
from tailshift.methods.sade import SADEOfExperts
from tailshift.models import (
    BranchedBackbone,
    Classifier,
    DigitsNet,
    ExpertHead,
    ExpertOutput,
    ResNet32,
)
from tailshift.runs.files import WEIGHTS, load_weights
from tailshift.training.progress import TrainingProgress

COUNTS = torch.tensor([50, 20, 5, 1])


def _ctrl_c(*args: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def test_sade__three_experts_on_a_shared_trunk() -> None:
    backbone = SADE().branch(DigitsNet())
    assert isinstance(backbone, BranchedBackbone)
    head = SADE(scale=7.0).build_head(backbone.feature_dim, 10)
    assert isinstance(head, ExpertHead)
    assert [expert.scale for expert in head.heads] == [7.0, 7.0, 7.0]
    assert head.heads[0].feature_dim == DigitsNet.feature_dim
    assert backbone(torch.randn(6, 1, 8, 8)).shape == (6, 3 * DigitsNet.feature_dim)


@pytest.mark.parametrize("tau", [0.0, 2.0])
def test_sade__loss_is_of_the_experts(tau: float) -> None:
    experts, labels = torch.randn(3, 6, 4), torch.tensor([0, 0, 1, 2, 3, 0])
    loss = SADE(tau=tau).build_loss(COUNTS)
    assert isinstance(loss, SADEOfExperts)
    output = ExpertOutput(experts.mean(0), experts)
    expected = sade_loss(experts, labels, priors.from_counts(COUNTS), tau=tau)
    torch.testing.assert_close(loss(output, labels), expected)
    by_class = loss.class_losses(output).gather(1, labels[:, None])
    torch.testing.assert_close(by_class.mean(), expected)


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.0])
def test_sade__mean_carries_the_geometric_mean(tau: float) -> None:
    """Exactly: experts that are the posteriors, averaged and compensated."""
    log_likelihood = torch.randn(5, 4, dtype=torch.float64)
    carried = sade_priors(priors.from_counts(COUNTS), tau=tau)
    mean = (log_likelihood + carried.log()[:, None]).mean(0)
    trained = SADE(tau=tau).logit_prior(COUNTS)
    torch.testing.assert_close(trained.sum().item(), 1.0)
    compensated = ts.post_compensate(
        mean, logit_prior=trained, target_prior=priors.uniform(4)
    )
    torch.testing.assert_close(compensated.softmax(1), log_likelihood.softmax(1))


def test_sade__mean_is_uniform_at_tau_1_only_where_ranks_mirror() -> None:
    """p_s · p̄ is constant for geometric counts, and at τ = 2 rare classes win."""
    geometric = torch.tensor([8, 4, 2, 1])
    torch.testing.assert_close(SADE(tau=1.0).logit_prior(geometric), priors.uniform(4))
    prior = SADE(tau=2.0).logit_prior(geometric)
    assert (prior.diff() > 0).all()
    expected = torch.tensor([1.0, 2, 4, 8], dtype=torch.float64) ** (1 / 3)
    torch.testing.assert_close(prior, expected / expected.sum())


def test_sade__trains_each_expert_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ts.load_recipe("digits_lt", ["method.name=sade", "train.epochs=2"])
    whole = ts.train(config, output=tmp_path / "whole")
    losses = [record["loss"] for record in whole.metrics]
    assert losses[1] < losses[0]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "step", _ctrl_c)
        part = ts.train(config, output=tmp_path / "part")
    assert not part.is_finished
    resumed = ts.train(config, output=tmp_path / "part", resume=True)
    weights = load_file(resumed.directory / WEIGHTS)
    expected = load_file(whole.directory / WEIGHTS)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    torch.testing.assert_close(expected["head.shares"], torch.full((3,), 1 / 3))


def test_sade__weights_of_its_earlier_network(tmp_path: Path) -> None:
    """It shared stage 2, and had stage 3 three times, 64 channels wide."""
    resnet, path = ResNet32(), tmp_path / "weights.safetensors"
    stage3 = torch.nn.Sequential(resnet.stage3)
    earlier = torch.nn.ModuleDict(
        {
            "trunk": torch.nn.Sequential(resnet.stem, resnet.stage1, resnet.stage2),
            "tails": torch.nn.ModuleList(copy.deepcopy(stage3) for _ in range(3)),
        }
    )
    backbone = {f"backbone.{k}": v for k, v in earlier.state_dict().items()}
    save_file({**backbone, **ExpertHead(192, 100).state_dict()}, path)
    now = SADE().branch(ResNet32())
    model = Classifier(now, SADE().build_head(now.feature_dim, 100))
    with pytest.raises(ValueError, match="another network") as error:
        load_weights(path, model)
    assert str(error.value) == (
        f"{path} holds the weights of another network than the recipe names."
    )
