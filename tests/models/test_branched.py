"""Branches share a trunk; with samplers of their own, each reads its part alone."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tailshift.methods import BBN, SADE
from tailshift.models import (
    Backbone,
    BranchedBackbone,
    DigitsNet,
    ExpertHead,
    ResNet32,
    TwoBranchResNet32,
    build_backbone,
    load_backbone_weights,
    num_parameters,
)
from tailshift.models.backbone import TailPart


def _branched(trained_on: str = "own_part") -> BranchedBackbone:
    backbone = BranchedBackbone(  # type: ignore[arg-type] # parametrised
        DigitsNet(), 2, at="last_block", trained_on=trained_on
    )
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


def test_branched_backbone__each_tail_is_drawn_by_itself() -> None:
    tails = BranchedBackbone(DigitsNet(), 3, at="last_two_stages").tails
    weights = [tail[0].weight for tail in tails]  # type: ignore[index] # a convolution
    for one, other in itertools.combinations(weights, 2):
        assert not torch.equal(one, other)
        assert one.std().item() == pytest.approx(other.std().item(), rel=0.05)


def test_branched_backbone__trained_weights_are_in_every_tail(tmp_path: Path) -> None:
    """Equal, but not shared."""
    path, trained = tmp_path / "weights.safetensors", DigitsNet()
    save_file(trained.state_dict(), path)
    backbone = DigitsNet()
    load_backbone_weights(backbone, path)
    tails = BranchedBackbone(backbone, 2, at="last_block").tails
    for a, b in zip(*(tail.parameters() for tail in tails), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()
    assert torch.equal(tails[1][0].weight, trained.layers[8].weight)  # type: ignore[index] # a convolution


def test_sade__has_the_published_networks_parameters() -> None:
    """ResNet-32: stem and stage 1, then 24 and 48 channels and a head each."""
    backbone = SADE().branch(ResNet32())
    assert isinstance(backbone, BranchedBackbone)
    head = SADE().build_head(backbone.feature_dim, 100)
    assert isinstance(head, ExpertHead)
    assert num_parameters(backbone.trunk) == 23_824
    for tail, cosine in zip(backbone.tails, head.heads, strict=True):
        assert num_parameters(tail) + num_parameters(cosine) == 253_344
    assert num_parameters(backbone) + num_parameters(head) == 783_856
    assert backbone(torch.randn(2, 3, 32, 32)).shape == (2, 3 * 48)
    same = SADE().branch(TwoBranchResNet32())
    assert num_parameters(same) == num_parameters(backbone)


def test_bbn__has_the_published_networks_parameters() -> None:
    """Of both ResNet-32, whose last block stands twice; one of them is that network."""
    published = TwoBranchResNet32()
    num_expected = num_parameters(published)
    images = torch.randn(3, 3, 32, 32)
    expected = published.eval()(images)
    branched = BBN().branch(published).eval()
    torch.testing.assert_close(branched(images), expected)
    assert num_parameters(branched) == num_expected
    assert num_parameters(BBN().branch(ResNet32())) == num_expected


def _names(parts: nn.Module) -> list[str]:
    return [type(part).__name__ for part in parts.children()]


@pytest.mark.parametrize("name", ["resnet50", "resnext50_32x4d"])
def test_branches_of_a_timm_resnet(name: str) -> None:
    """SADE's experts have layer3 and layer4 each, BBN's branches the last block."""
    backbone = build_backbone(f"timm:{name}")
    model = backbone.model
    sizes = {k: num_parameters(part) for k, part in model.named_children()}
    stages, last = sizes["layer3"] + sizes["layer4"], num_parameters(model.layer4[-1])
    assert last < sizes["layer4"] / 2
    for method, num_tails, tail, blocks in (
        (SADE(), 3, stages, ["Sequential", *["Bottleneck"] * 3]),
        (BBN(), 2, last, ["Bottleneck"]),
    ):
        branched = method.branch(build_backbone(f"timm:{name}"))
        assert isinstance(branched, BranchedBackbone)
        assert [num_parameters(part) for part in branched.tails] == [tail] * num_tails
        assert num_parameters(branched.trunk) == num_parameters(backbone) - tail
        assert branched.feature_dim == num_tails * 2048
        for part in branched.tails:
            assert _names(part) == [*blocks, "SelectAdaptivePool2d"]


def test_several__a_timm_part_is_drawn_as_timm_draws_it() -> None:
    backbone = build_backbone("timm:resnet18")
    first, second = backbone.split("last_block", 2).tails
    convolutions = zip(
        *(
            [m for m in tail.modules() if isinstance(m, nn.Conv2d)]
            for tail in (first, second)
        ),
        strict=True,
    )
    for one, other in convolutions:
        assert not torch.equal(one.weight, other.weight)
        torch.testing.assert_close(
            one.weight.std(), other.weight.std(), rtol=0.01, atol=0
        )


@pytest.mark.parametrize("at", ["last_two_stages", "last_block", "pooling"])
@pytest.mark.parametrize(
    "name", ["digits_net", "resnet32", "resnet32_two_branch", "timm:test_resnet"]
)
def test_split__trunk_and_tail_are_the_backbone(name: str, at: TailPart) -> None:
    if name.startswith("resnet32") and at == "last_two_stages":
        pytest.skip("the experts' stages are narrower than the network's")
    backbone = build_backbone(name, image_size=32).eval()
    split = backbone.split(at, 2 if name == "resnet32_two_branch" else 1)
    images = torch.randn(3, 3, 32, 32)
    maps = split.trunk.eval()(images)
    assert maps.ndim == 4
    tails = split.tails[:1] if at == "pooling" else split.tails
    features = torch.cat([tail.eval()(maps) for tail in tails], dim=1)
    torch.testing.assert_close(features, backbone(images))
    assert features.shape[1] == len(tails) * split.feature_dim


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
        BranchedBackbone(backbone, 2, at="last_block")
    assert str(error.value) == (
        f"`model.name` must be a backbone that can be split into branches, but {name} "
        "cannot. Take resnet32, or a ResNet of timm."
    )
