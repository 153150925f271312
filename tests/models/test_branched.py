"""Branches share a trunk; with samplers of their own, each reads its part alone."""

import pytest
import torch
from torch import nn

from tailshift.models import (
    Backbone,
    BranchedBackbone,
    DigitsNet,
    ResNet32,
    TwoBranchResNet32,
    build_backbone,
)


def _branched(trained_on: str = "own_part") -> BranchedBackbone:
    backbone = BranchedBackbone(DigitsNet(), 2, trained_on=trained_on)  # type: ignore[arg-type] # parametrised
    with torch.no_grad():
        for parameter in backbone.tails[1].parameters():
            parameter.add_(0.1)  # so that it matters which tail it was
    return backbone


def test_branched_backbone__each_tail_reads_its_own_part() -> None:
    """Part k goes through trunk and tail k, batch statistics of that part alone."""
    backbone, images = _branched(), torch.randn(12, 1, 8, 8)
    features = backbone(images)
    assert features.shape == (6, 256)
    first, second = (
        tail(backbone.trunk(part))
        for tail, part in zip(backbone.tails, images.chunk(2), strict=True)
    )
    torch.testing.assert_close(features, torch.cat([first, second], dim=1))


def test_branched_backbone__a_part_does_not_see_the_other() -> None:
    backbone, images = _branched(), torch.randn(12, 1, 8, 8)
    other = torch.cat([images[:6], 5 + 9 * torch.randn(6, 1, 8, 8)])
    before, after = backbone(images), backbone(other)
    assert torch.equal(before[:, :128], after[:, :128])
    assert not torch.allclose(before[:, 128:], after[:, 128:])


def test_branched_backbone__gradients_stay_in_their_branch() -> None:
    backbone = _branched()
    backbone(torch.randn(12, 1, 8, 8))[:, :128].sum().backward()
    first, second = backbone.tails
    assert all(p.grad is not None for p in first.parameters())
    assert all(p.grad is None or not p.grad.any() for p in second.parameters())


@pytest.mark.parametrize("is_training", [True, False])
def test_branched_backbone__all_tails_read_all_images(is_training: bool) -> None:
    """In evaluation always; in training where no samplers are named."""
    backbone = _branched("all" if is_training else "own_part").train(is_training)
    images = torch.randn(6, 1, 8, 8)
    x = backbone.trunk(images)
    expected = torch.cat([tail(x) for tail in backbone.tails], dim=1)
    torch.testing.assert_close(backbone(images), expected)
    assert backbone.feature_dim == 256


def test_branched_backbone__tails_start_as_equals_and_share_nothing() -> None:
    first, second = BranchedBackbone(DigitsNet(), 2).tails
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()


@pytest.mark.parametrize(
    "backbone",
    [DigitsNet(), ResNet32(), build_backbone("timm:test_resnet", image_size=32)],
    ids=["digits_net", "resnet32", "timm:test_resnet"],
)
def test_split__trunk_and_tail_are_the_backbone(backbone: Backbone) -> None:
    split = backbone.eval().split()
    channels = next(backbone.parameters()).shape[1]
    images = torch.randn(3, channels, 32, 32)
    features = split.tail.eval()(split.trunk.eval()(images))
    torch.testing.assert_close(features, backbone(images))
    assert features.shape == (3, split.feature_dim) == (3, backbone.feature_dim)


def test_split__two_branch_network_gives_one_of_its_branches() -> None:
    """Which, twice, is the network itself: as BBN has it."""
    backbone = TwoBranchResNet32().eval()
    split = backbone.split()
    images = torch.randn(3, 3, 32, 32)
    features = split.tail.eval()(split.trunk.eval()(images))
    torch.testing.assert_close(features, backbone(images)[:, :64])
    assert split.feature_dim == 64
    whole = BranchedBackbone(backbone, 2)
    assert sum(p.numel() for p in whole.parameters()) == sum(
        p.numel() for p in TwoBranchResNet32().parameters()
    )


class Flat(Backbone):
    """A backbone without parts."""

    feature_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Flatten()


@pytest.mark.parametrize(
    ("backbone", "name"),
    [
        (Flat(), "Flat"),
        (build_backbone("timm:test_vit", image_size=160), "TimmBackbone"),
    ],
    ids=["own", "timm:test_vit"],
)
def test_split__refused(backbone: Backbone, name: str) -> None:
    with pytest.raises(ValueError, match="split") as error:
        BranchedBackbone(backbone, 2)
    assert str(error.value) == (
        f"`model.name` must be a backbone that can be split into branches, but {name} "
        "cannot. Take resnet32, or a ResNet of timm."
    )
