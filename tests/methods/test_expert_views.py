"""SADE's experts, weighted for a target by random views of its images."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import tailshift as ts
from tailshift.losses import sade_priors
from tailshift.methods.sade import (
    aggregate_prior,
    learn_shares_from_images,
    random_view,
)
from tailshift.models import Backbone, Classifier, ExpertHead


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ts.Run:
    config = ts.load_recipe("digits_lt", ["method.name=sade", "train.epochs=3"])
    return ts.train(config, output=tmp_path_factory.mktemp("sade") / "run")


@pytest.fixture(scope="module")
def images(run: ts.Run) -> Tensor:
    return run.config.data.load(root=None, seed=0).test.images  # type: ignore[attr-defined] # in memory


def test_adapt_experts__logits_carry_the_stated_prior(
    run: ts.Run, images: Tensor
) -> None:
    """Shares, logits and prior belong together; the run keeps its own."""
    adapted = run.adapt_experts(images, epochs=20, seed=1)
    assert adapted.shares.sum().item() == pytest.approx(1)
    assert (adapted.shares - 1 / 3).abs().max() > 0.01
    carried = sade_priors(run.source_prior, tau=2.0)
    product = (carried ** adapted.shares[:, None]).prod(0)
    torch.testing.assert_close(adapted.logit_prior, product / product.sum())
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        v = run.model.head.experts(run.model.backbone(x))  # type: ignore[operator] # an expert head's
        expected = torch.einsum("k,knc->nc", adapted.shares.float(), v)
        torch.testing.assert_close(adapted.model(x), expected)
        torch.testing.assert_close(run.model(x), v.mean(0))
    torch.testing.assert_close(
        run.logit_prior, aggregate_prior(carried, [1 / 3, 1 / 3, 1 / 3])
    )


def test_adapt_experts__repeats_and_leaves_the_generator_alone(
    run: ts.Run, images: Tensor
) -> None:
    state = torch.get_rng_state()
    first, again, other = (run.adapt_experts(images, seed=s).shares for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


class Recorder(Backbone):
    """Gives an image's mean, and keeps what it was shown."""

    feature_dim = 3

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        return images.mean(dim=(1, 2, 3))[:, None] + torch.ones(3)


def test_learn_shares_from_images__two_new_views_in_each_epoch() -> None:
    """Of the same images in the same order, no two of them alike."""
    images = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8)
    backbone = Recorder()
    model = Classifier(backbone, ExpertHead(3, 4)).eval()
    learn_shares_from_images(model, images, torch.Tensor.float, epochs=3, batch_size=4)
    sizes = [len(view) for view in backbone.seen]
    assert sizes == [4, 4, 2, 2] * 3
    flat = torch.cat([view.flatten(1) for view in backbone.seen])
    assert len(flat.unique(dim=0)) == len(flat) == 36


def test_random_view__each_step_as_often_as_published() -> None:
    """Of a striped image: grey in .2 of all, its colours kept in .2 of the others."""
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[0, :, :16], image[1, :, 16:] = 200, 100
    torch.manual_seed(0)
    draw = random_view(32)
    views = torch.stack([draw(image) for _ in range(1000)])
    assert views.shape == (1000, 3, 32, 32)
    assert views.dtype == torch.uint8
    is_grey = ((views[:, 0] == views[:, 1]) & (views[:, 1] == views[:, 2])).flatten(1)
    assert is_grey.all(1).double().mean().item() == pytest.approx(0.2, abs=0.04)
    red_left = views[:, 0, 16, 6].int() > views[:, 0, 16, 25].int()
    assert red_left.double().mean().item() == pytest.approx(0.5, abs=0.05)
    kept = (views == 200).any(3).any(2)[:, 0] & (views[:, 2] == 0).all(2).all(1)
    assert kept.double().mean().item() == pytest.approx(0.2 * 0.8, abs=0.04)


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (1, 3), (65, 3)])
def test_random_view__other_sizes(size: int, channels: int) -> None:
    image = torch.full((channels, size, size), 9, dtype=torch.uint8)
    draw = random_view(size)
    assert all(draw(image).shape == image.shape for _ in range(20))


def test_adapt_experts__says_what_is_wrong(run: ts.Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="uint8") as error:
        run.adapt_experts(torch.zeros(2, 1, 8, 8))
    assert str(error.value) == (
        "`images` must be uint8 of shape (N, channels, H, W) and not be empty, but is "
        "torch.float32 of shape (2, 1, 8, 8)."
    )
    config = ts.load_recipe("digits_lt", ["method.name=softmax", "train.epochs=1"])
    softmax = ts.train(config, output=tmp_path / "softmax")
    with pytest.raises(ValueError, match="sade") as error:
        softmax.adapt_experts(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert str(error.value) == (
        f"`adapt_experts` is for runs of sade or balpoe, but {softmax.directory} is "
        "one of softmax. `retarget` adapts any run."
    )
