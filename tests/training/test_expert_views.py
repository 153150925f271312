"""Experts fitted to a target: the views, their order, and what they lead to."""

import dataclasses

import pytest
import torch

import tailshift as ts
from tailshift import priors
from tailshift.data import Augmentation, DigitsLT, MemorySplit
from tailshift.losses import sade_priors
from tailshift.methods.sade import aggregate_prior
from tailshift.models import Classifier, DigitsNet, ExpertHead, LinearHead
from tailshift.training.expert_views import adapt_experts, expert_views


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ts.Run:
    config = ts.load_recipe("digits_lt", ["method.name=sade", "train.epochs=20"])
    return ts.train(config, output=tmp_path_factory.mktemp("sade") / "run")


@pytest.fixture(scope="module")
def split() -> MemorySplit:
    test = DigitsLT().load(root=None, seed=0).test
    assert isinstance(test, MemorySplit)
    return test


def test_expert_views__are_in_the_splits_order(run: ts.Run, split: MemorySplit) -> None:
    """Without augmentation both are the experts' logits of the images as they are."""
    plain = dataclasses.replace(split, augmentation=Augmentation())
    batch = next(split.loader(batch_size=500, training=False).epoch(0))
    head = run.model.head
    assert isinstance(head, ExpertHead)
    with torch.no_grad():
        expected = head.experts(run.model.backbone(batch.images))
    for view in expert_views(run.model, plain, batch_size=64):
        assert view.dtype == torch.float32
        torch.testing.assert_close(view, expected, rtol=1e-4, atol=1e-4)


def test_expert_views__are_two_and_repeat(run: ts.Run, split: MemorySplit) -> None:
    first, second = expert_views(run.model, split)
    assert first.shape == second.shape == (3, len(split), 10)
    assert not torch.allclose(first, second, atol=0.1)
    again = expert_views(run.model, split)
    assert torch.equal(torch.stack(again), torch.stack([first, second]))
    other, _ = expert_views(run.model, split, seed=1)
    assert not torch.equal(other, first)


def test_adapt_experts__shares_are_a_distribution_and_repeat(
    run: ts.Run, split: MemorySplit
) -> None:
    before = run.model.head.state_dict()
    heads = [adapt_experts(run.model, split).head for _ in range(2)]
    shares = [head.state_dict()["shares"] for head in heads]
    assert torch.equal(*shares)
    assert (shares[0] > 0).all()
    assert shares[0].sum().item() == pytest.approx(1, abs=1e-6)
    assert not torch.allclose(shares[0], torch.full((3,), 1 / 3), atol=1e-4)
    torch.testing.assert_close(before["shares"], torch.full((3,), 1 / 3))


def test_adapt_experts__follows_the_target(run: ts.Run, split: MemorySplit) -> None:
    """The expert of rare classes counts more where these are frequent."""
    counts = priors.long_tailed_counts(50, 50, 10)
    position = torch.arange(len(split)) % 50  # 50 of each class, one after the other
    shares = []
    for target in (counts, counts.flip(0)):
        images = split.subset(position < target[split.labels])
        adapted = adapt_experts(run.model, images, epochs=50)
        assert isinstance(adapted.head, ExpertHead)
        shares.append(adapted.head.shares)
    forward, backward = shares
    assert backward[2] > forward[2]
    assert backward[0] < forward[0]
    p_s = run.source_prior
    forward_prior, backward_prior = (
        aggregate_prior(sade_priors(p_s), a) for a in shares
    )
    assert forward_prior[0] > backward_prior[0]


def test_adapt_experts__a_split_without_augmentation(
    run: ts.Run, split: MemorySplit
) -> None:
    plain = dataclasses.replace(split, augmentation=Augmentation())
    with pytest.raises(ValueError, match="augmented") as error:
        adapt_experts(run.model, plain)
    assert str(error.value) == (
        "`split` must be augmented when it is loaded for training, but two views of "
        "its images are the same. Give it the training split's augmentation."
    )


def test_adapt_experts__another_head(split: MemorySplit) -> None:
    model = Classifier(DigitsNet(), LinearHead(128, 10))
    with pytest.raises(TypeError, match="ExpertHead") as error:
        adapt_experts(model, split)
    assert str(error.value) == (
        "`model` must have an ExpertHead, as SADE trains it, but has a LinearHead."
    )
