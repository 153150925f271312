import numpy as np
import pytest
import torch
from torchvision.transforms.v2.functional import rotate

from tailshift.data import CIFAR100LT
from tailshift.data.memory import Augmentation
from tailshift.data.randomness import Stream, hashed_below


@pytest.fixture
def images():
    return torch.randint(1, 256, (40, 3, 8, 6), dtype=torch.uint8)


def _reference_augment(images, padding, flip, seed, epoch, sample_ids):
    """One sample after the other, pixel by pixel."""
    out = torch.zeros_like(images)
    _, _, height, width = images.shape
    for i, sample_id in enumerate(sample_ids.tolist()):

        def draw(bound, stream, sample_id=sample_id):
            return int(
                hashed_below(bound, [sample_id], seed=seed, epoch=epoch, stream=stream)[
                    0
                ]
            )

        down = draw(2 * padding + 1, Stream.CROP_ROW) - padding
        right = draw(2 * padding + 1, Stream.CROP_COLUMN) - padding
        mirror = flip and draw(2, Stream.FLIP) == 1
        for row in range(height):
            for column in range(width):
                y, x = row + down, column + right
                if 0 <= y < height and 0 <= x < width:
                    to = width - 1 - column if mirror else column
                    out[i, :, row, to] = images[i, :, y, x]
    return out


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_augmentation__equals_the_naive_loop(images, padding, flip):
    ids = torch.randint(0, 10_000, (len(images),))
    augment = Augmentation(padding=padding, flip=flip)
    result = augment(images, seed=3, epoch=5, sample_ids=ids)
    assert torch.equal(result, _reference_augment(images, padding, flip, 3, 5, ids))
    assert result.dtype == torch.uint8


@pytest.mark.parametrize("shape", [(32, 32), (20, 32)])
def test_augmentation__rotation_equals_torchvisions(shape):
    """But for a few pixels that lie between two others, in other arithmetic."""
    images = torch.randint(1, 256, (30, 3, *shape), dtype=torch.uint8)
    ids = torch.arange(30)
    result = Augmentation(rotation=15)(images, seed=3, epoch=5, sample_ids=ids)
    draws = hashed_below(2**32, ids, seed=3, epoch=5, stream=Stream.ROTATION)
    angles = 15 * (draws / 2**31 - 1)
    assert -15 <= angles.min() < -10 < 10 < angles.max() < 15
    expected = torch.stack(
        [rotate(image, angle) for image, angle in zip(images, angles, strict=True)]
    )
    assert (result != expected).double().mean() < 0.002
    assert not torch.equal(result, images)


def test_augmentation__one_pixel_by_hand():
    """A 1×1 image with padding 1 stays in 1 of 9 crops and is black in the others."""
    images = torch.full((9000, 1, 1, 1), 200, dtype=torch.uint8)
    ids = torch.arange(9000)
    result = Augmentation(padding=1)(images, seed=0, epoch=0, sample_ids=ids)
    kept = (result == 200).double().mean().item()
    assert set(result.unique().tolist()) == {0, 200}
    assert kept == pytest.approx(1 / 9, abs=4.5 * np.sqrt(8 / 81 / 9000))


def test_augmentation__default_leaves_images_alone(images):
    ids = torch.arange(len(images))
    assert torch.equal(Augmentation()(images, seed=0, epoch=0, sample_ids=ids), images)


def test_augmentation__does_not_change_its_input(images):
    before = images.clone()
    ids = torch.arange(len(images))
    for augment in (Augmentation(padding=2, flip=True), Augmentation(flip=True)):
        augment(images, seed=0, epoch=0, sample_ids=ids)
        assert torch.equal(images, before)


def test_augmentation__depends_on_the_sample_not_on_the_batch(images):
    augment, ids = Augmentation(padding=4, flip=True), torch.arange(len(images))
    whole = augment(images, seed=0, epoch=1, sample_ids=ids)
    pick = torch.tensor([33, 2, 17])
    part = augment(images[pick], seed=0, epoch=1, sample_ids=pick)
    assert torch.equal(part, whole[pick])
    other = augment(images, seed=0, epoch=2, sample_ids=ids)
    assert not torch.equal(other, whole)


def test_augmentation__servings_of_a_sample_differ(images):
    augment = Augmentation(padding=4, flip=True)
    same = images[:1].expand(30, -1, -1, -1)
    options = {"seed": 0, "epoch": 0, "sample_ids": torch.zeros(30, dtype=torch.int64)}
    served = augment(same, **options, occurrences=torch.arange(30))
    assert torch.equal(served[0], augment(same, **options)[0])
    assert len({bytes(image.flatten().tolist()) for image in served}) > 20


def test_augmentation__empty_batch(images):
    augment, none = Augmentation(padding=4, flip=True), torch.arange(0)
    result = augment(images[:0], seed=0, epoch=0, sample_ids=none)
    assert result.shape == (0, 3, 8, 6)


def test_augmentation__negative_padding():
    with pytest.raises(ValueError, match="padding") as error:
        Augmentation(padding=-1)
    assert str(error.value) == "`padding` must be >= 0, but is -1."


def test_augmentation__rotation_beyond_half_a_turn():
    for make, name in ((Augmentation, "rotation"), (CIFAR100LT, "rotate")):
        with pytest.raises(ValueError, match=name) as error:
            make(**{name: 181.0})
        assert str(error.value) == (
            f"`{name}` must be in [0, 180] degrees, but is 181."
        )


def test_augmentation__too_few_ids(images):
    with pytest.raises(ValueError, match="sample_ids") as error:
        Augmentation()(images, seed=0, epoch=0, sample_ids=torch.arange(2))
    assert str(error.value) == (
        "`sample_ids` must be one for each of the 40 images, but has shape (2,)."
    )
