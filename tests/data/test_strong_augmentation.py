from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from tailshift.data import CIFAR100LT, ImageNetLT
from tailshift.data.memory import Augmentation, MemorySplit
from tailshift.data.randomness import Stream, hashed_below, hashed_integers
from tailshift.data.strong_augmentation import Cutout, apply_policy

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
STRONG = Augmentation(padding=4, flip=True, rotation=5, policy="auto", cutout=16)
TRANSFORMS = {
    "auto": lambda: v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10),
    "rand": v2.RandAugment,
}


@pytest.fixture
def images():
    """Smooth images: most operations change them."""
    coarse = torch.randint(0, 256, (40, 3, 4, 4), dtype=torch.uint8)
    return functional.resize(coarse, [32, 32])


@pytest.fixture
def split(images):
    labels = torch.tensor([0] * 30 + [1] * 9 + [2])
    return MemorySplit(images, labels, MEAN, STD, STRONG)


def _policy(images, policy, ids=None, **options):
    ids = np.arange(len(images)) if ids is None else ids
    options = {"seed": 3, "epoch": 5} | options
    return apply_policy(images, policy, sample_ids=ids, **options)


@pytest.mark.parametrize("policy", ["auto", "rand"])
def test_apply_policy__is_torchvisions_transform_seeded_per_image(images, policy):
    transform, expected = TRANSFORMS[policy](), []
    seeds = hashed_integers(np.arange(40), seed=3, epoch=5, stream=Stream.POLICY)
    for image, seed in zip(images, seeds.tolist(), strict=True):
        torch.manual_seed(seed)
        expected.append(transform(image))
    assert torch.equal(_policy(images, policy), torch.stack(expected))


@pytest.mark.parametrize("policy", ["auto", "rand"])
def test_apply_policy__operations_occur_as_often_as_in_the_policy(policy):
    """One image, augmented 4,000 times by us and by torchvision with other seeds.

    The outcomes that both samples have at least 10 times together are compared by the
    chi-squared statistic of two samples.
    """
    num = 4000
    ramp = torch.arange(3 * 32 * 32).remainder(251).to(torch.uint8).view(3, 32, 32)
    ours = _policy(ramp.expand(num, -1, -1, -1), policy)
    transform = TRANSFORMS[policy]()
    torch.manual_seed(0)
    theirs = torch.stack([transform(ramp) for _ in range(num)])

    found, expected = (
        Counter(image.numpy().tobytes() for image in batch) for batch in (ours, theirs)
    )
    counts = np.array([[found[key], expected[key]] for key in found | expected])
    a, b = counts[counts.sum(1) >= 10].T
    assert len(a) >= 20
    statistic = ((a - b) ** 2 / (a + b)).sum()
    assert abs(statistic - len(a)) <= 4.5 * np.sqrt(2 * len(a))


def test_apply_policy__none_leaves_the_images_alone(images):
    assert _policy(images, "none") is images


@pytest.mark.parametrize("policy", ["auto", "rand"])
def test_apply_policy__leaves_its_input_and_the_generator_alone(images, policy):
    before, state = images.clone(), torch.get_rng_state()
    changed = _policy(images, policy)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert (changed != images).flatten(1).any(1).double().mean() > 0.5


def test_apply_policy__grey_images(images):
    assert _policy(images[:, :1], "auto").shape == (40, 1, 32, 32)


def _reference_cutout(images, size, seed, epoch, ids):
    """One pixel after the other."""
    out = images.clone()
    _, _, height, width = images.shape
    for i, sample_id in enumerate(ids.tolist()):
        draws = {"seed": seed, "epoch": epoch}
        row, column = (
            int(hashed_below(side, [sample_id], stream=stream, **draws)[0])
            for side, stream in (
                (height, Stream.CUTOUT_ROW),
                (width, Stream.CUTOUT_COLUMN),
            )
        )
        top, left = row - size // 2, column - size // 2
        for y in range(top, top + size):
            for x in range(left, left + size):
                if 0 <= y < height and 0 <= x < width:
                    out[i, :, y, x] = 0
    return out


@pytest.mark.parametrize("size", [0, 1, 5, 6, 12])
def test_cutout__equals_the_naive_loop(size):
    images = torch.rand(50, 3, 12, 9) + 1
    ids = torch.randint(0, 10_000, (50,)).numpy()
    expected = _reference_cutout(images, size, 3, 5, ids)
    result = Cutout(size)(images, seed=3, epoch=5, sample_ids=ids)
    assert torch.equal(result, expected)


def test_cutout__mean_area():
    """A square of 2 in 4 × 4 has 2 rows, but 1 if its centre is in row 0."""
    ones = torch.ones(20_000, 1, 4, 4)
    cut = Cutout(2)(ones, seed=0, epoch=0, sample_ids=np.arange(20_000))
    area = (cut == 0).flatten(1).sum(1).double()
    assert area.mean().item() == pytest.approx((7 / 4) ** 2, abs=0.03)
    assert set(area.tolist()) == {1.0, 2.0, 4.0}


def _batches(split, **options):
    options = {"batch_size": 8, "training": True, "seed": 4} | options
    start = options.pop("start", 0)
    return list(split.loader(**options).epoch(2, start_batch=start))


def _by_sample(batches):
    """Return the images of each sample, in the order in which they came."""
    seen = {}
    for batch in batches:
        for image, i in zip(batch.images, batch.sample_ids.tolist(), strict=True):
            seen.setdefault(i, []).append(image)
    return seen


def _same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(torch.stack(a[i]), torch.stack(b[i])) for i in a
    )


def test_loader__same_images_in_other_batches(split):
    options = {"sampler": "class_balanced"}
    whole = _by_sample(_batches(split, **options))
    assert len(whole[39]) > 8
    assert len({image.numpy().tobytes() for image in whole[39]}) > 8
    for batch_size in (1, 7, 40):
        other = _batches(split, batch_size=batch_size, **options)
        assert _same(_by_sample(other), whole)


def test_loader__ranks_and_resume_give_the_same_images(split):
    whole = _batches(split)
    resumed = _batches(split, start=2)
    for a, b in zip(whole[2:], resumed, strict=True):
        assert torch.equal(a.images, b.images)
    for rank in range(2):
        part = _batches(split, rank=rank, world_size=2)
        for a, b in zip(whole, part, strict=True):
            assert torch.equal(a.images[rank::2], b.images)


def test_loader__order_of_the_operations(split):
    """Crop, flip and rotation, then the policy, normalisation and cutout."""
    (batch,) = _batches(split, batch_size=40)
    ids = batch.sample_ids
    weak = replace(STRONG, policy="none", cutout=0)
    images = weak(split.images[ids], seed=4, epoch=2, sample_ids=ids)
    images = _policy(images, "auto", ids.numpy(), seed=4, epoch=2)
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    normalised = (images / 255 - mean) / std
    expected = _reference_cutout(normalised, 16, 4, 2, ids)
    torch.testing.assert_close(batch.images, expected)


def test_loader__evaluation_has_no_strong_augmentation(split):
    plain = replace(split, augmentation=Augmentation())
    for a, b in zip(
        _batches(split, training=False), _batches(plain, training=False), strict=True
    ):
        assert torch.equal(a.images, b.images)


def test_loader__the_default_is_crop_and_flip(split):
    """Bit for bit: nothing of strong augmentation touches the batch."""
    weak = Augmentation(padding=4, flip=True)
    (batch,) = _batches(replace(split, augmentation=weak), batch_size=40)
    ids = batch.sample_ids
    images = weak(split.images[ids], seed=4, epoch=2, sample_ids=ids)
    scale, shift = (1 / (255 * np.array(STD))), -np.array(MEAN) / np.array(STD)
    expected = images.float().mul_(torch.tensor(scale).float()[:, None, None])
    assert torch.equal(
        batch.images, expected.add_(torch.tensor(shift).float()[:, None, None])
    )
    assert CIFAR100LT().augmentation == weak


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"augment": "auto"}, Augmentation(padding=4, flip=True, policy="auto")),
        ({"augment": "rand"}, Augmentation(padding=4, flip=True, policy="rand")),
        ({"cutout": 16}, Augmentation(padding=4, flip=True, cutout=16)),
    ],
)
def test_cifar__settings(settings, expected):
    assert CIFAR100LT(**settings).augmentation == expected


def test_augmentation__says_what_it_does():
    assert str(replace(STRONG, rotation=0)) == (
        "in training shifted by up to 4 pixels, mirrored, AutoAugment, cutout of 16 "
        "pixels"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: CIFAR100LT(augment="autoaugment"),
            "`augment` must be crop_flip, auto or rand, but is 'autoaugment'.",
        ),
        (
            lambda: ImageNetLT(augment="none"),
            "`augment` must be crop_flip, auto or rand, but is 'none'.",
        ),
        (
            lambda: CIFAR100LT(cutout=33),
            "`cutout` must be in 0..32 pixels (the image's size), but is 33.",
        ),
        (
            lambda: ImageNetLT(cutout=-1),
            "`cutout` must be in 0..224 pixels (the image's size), but is -1.",
        ),
        (
            lambda: Augmentation(policy="crop"),
            "`policy` must be none, auto or rand, but is 'crop'.",
        ),
        (
            lambda: Augmentation(cutout=-1),
            "`cutout` must be >= 0 pixels, but is -1.",
        ),
    ],
)
def test_settings__are_checked(make, message):
    with pytest.raises(ValueError, match="`") as error:
        make()
    assert str(error.value) == message
